// Applies the reader's choice of colours before anything is drawn; without one, the style sheet follows the system.
try {
  document.documentElement.dataset.theme = localStorage.getItem("idc.theme") || "";
} catch {
  // This browser stores nothing, so there is no choice.
}
