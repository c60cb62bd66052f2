// Draws the figures in the colours of the page, and again when these change.
(function () {
  "use strict";
  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }
  function dress(layout) {
    var ink = colour("--ink"), soft = colour("--soft"), line = colour("--line");
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = Object.assign({}, layout.font, { color: ink, family: getComputedStyle(document.body).fontFamily });
    layout.hoverlabel = { bgcolor: colour("--band"), bordercolor: line, font: { color: ink } };
    Object.keys(layout).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) {
        Object.assign(layout[key], { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line });
        layout[key].tickfont = Object.assign({}, layout[key].tickfont, { color: soft });
      }
    });
    return layout;
  }
  function inked(trace) {
    // #010203 stands for the colour of the text, which no fixed colour can be on both papers.
    var ink = colour("--ink");
    ["line", "marker", "error_x"].forEach(function (part) {
      if (trace[part] && trace[part].color === "#010203") trace[part].color = ink;
    });
    if (trace.marker && trace.marker.line && trace.marker.line.color === "#010203") trace.marker.line.color = ink;
    return trace;
  }
  function draw() {
    document.querySelectorAll("figure.plot").forEach(function (figure) {
      var spec = JSON.parse(figure.querySelector("script").textContent);
      Plotly.react(figure.querySelector(".canvas"), spec.data.map(inked), dress(spec.layout), {
        responsive: true, displayModeBar: false
      });
    });
  }
  draw();
  ["(prefers-color-scheme: dark)", "print"].forEach(function (query) {
    window.matchMedia(query).addEventListener("change", draw);
  });
})();
