"use strict";
// Counts what goes wrong, where anybody who looks at the page can see it.
window.addEventListener("error", function (event) {
  var root = document.documentElement;
  root.dataset.errors = String(Number(root.dataset.errors || "0") + 1);
  root.dataset.lastError = String(event.message);
});
window.addEventListener("securitypolicyviolation", function (event) {
  document.documentElement.dataset.refused = event.violatedDirective;
});
