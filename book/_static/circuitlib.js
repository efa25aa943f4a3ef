// Draws the attention views of a page. The library that draws them is 1.3 MB, so it is loaded only where a view is.
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
    try {
      window.CircuitsVis.render(view.id, window.CircuitsVis[view.dataset.element], JSON.parse(view.dataset.props));
    } catch (error) {
      fail([view], error.message);
    }
  }

  function fail(views, why) {
    views.forEach(function (view) {
      view.textContent = "This attention view could not be drawn (" + why + ").";
    });
  }

  function start() {
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
