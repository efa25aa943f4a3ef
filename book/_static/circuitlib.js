// Draws the attention views of a page, and gives names to what the libraries leave without one.
// The library that draws the views is 1.3 MB, so it is loaded only where a view is.
(function () {
  "use strict";

  function base() {
    const root = document.documentElement.dataset.content_root;
    if (root !== undefined) return root;
    return typeof DOCUMENTATION_OPTIONS === "undefined" ? "" : DOCUMENTATION_OPTIONS.URL_ROOT || "";
  }

  function draw(view, index) {
    // The same view may stand on a page twice, and CircuitsVis finds its place by id.
    view.dataset.drawn = "1";
    view.id = (view.id || "circuitlib-attention") + "-" + index;
    name(view);
    try {
      window.CircuitsVis.render(view.id, window.CircuitsVis[view.dataset.element], JSON.parse(view.dataset.props));
    } catch (error) {
      fail([view], error.message);
    }
  }

  function name(view) {
    // CircuitsVis draws again when the pointer moves. Each canvas stands beside its head's name, or under the large title.
    const label = function () {
      view.querySelectorAll("canvas:not([aria-label])").forEach(function (canvas) {
        const titled = canvas.closest("div:has(> h4), div:has(> * > h4), div:has(> h3)");
        const title = titled && titled.querySelector("h4, h3");
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", (title ? title.textContent.trim() + ": " : "") + "attention pattern, also given as text below");
      });
    };
    new MutationObserver(label).observe(view, { childList: true, subtree: true });
  }

  function fail(views, why) {
    views.forEach(function (view) {
      view.textContent = "This attention view could not be drawn (" + why + ").";
    });
  }

  function theme() {
    // Icons and key caps inside buttons that have a name of their own; a name that can be read on the button needs no label.
    document.querySelectorAll(".theme-switch-button .theme-switch, .search-button__kbd-shortcut").forEach(function (part) {
      part.removeAttribute("title");
      part.setAttribute("aria-hidden", "true");
    });
    document.querySelectorAll(".search-button-field").forEach(function (button) { button.removeAttribute("aria-label"); });
  }

  function pictures() {
    // Panels side by side would be too small on a phone: there they are wider than the page, and scroll.
    document.querySelectorAll(".cell_output a.full-size > img").forEach(function (picture) {
      const look = function () {
        if (picture.naturalWidth > 2 * picture.naturalHeight) picture.parentElement.classList.add("wide");
      };
      if (picture.complete) look();
      else picture.addEventListener("load", look);
    });
  }

  function search() {
    // The search reads each page that it found to quote from it. A browser does not allow that to a page opened as a file.
    if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
      DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
    }
  }

  function unfold() {
    // What scrolls sideways can be reached by keyboard. The theme sees to it where it can see; not in what is folded.
    document.addEventListener("toggle", function (event) {
      event.target.querySelectorAll("pre, .cell_output > .output").forEach(function (part) {
        part.tabIndex = part.scrollWidth > part.clientWidth ? 0 : -1;
      });
    }, true);
  }

  function start() {
    theme();
    pictures();
    unfold();
    search();
    const views = Array.from(document.querySelectorAll(".circuitlib-attention:not([data-drawn])"));
    if (views.length === 0) return;
    if (window.CircuitsVis) return views.forEach(draw);
    const script = document.createElement("script");
    script.src = base() + "_static/vendor/circuitsvis.js";
    script.onload = function () { views.forEach(draw); };
    script.onerror = function () { fail(views, "its script is missing"); };
    document.head.appendChild(script);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
