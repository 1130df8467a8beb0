// Looks every second whether the run's files have changed, and shows the report again. Scroll and what is unfolded stay.
const live = document.getElementById("live");
const unfolded = () => [...document.querySelectorAll("details")].map((one) => one.open);
const KEPT = "unfolded";
try {
  const before = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
  document.querySelectorAll("details").forEach((one, n) => before[n] !== undefined && (one.open = before[n]));
} catch {
  sessionStorage.removeItem(KEPT);
}
document.getElementById("updated").textContent = `Shown since ${new Date().toLocaleTimeString()}.`;
const watching = setInterval(async () => {
  if (document.hidden) return;
  try {
    const reply = await fetch("version", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
    const { version } = await reply.json();
    live.classList.remove("bare");
    if (version === live.dataset.version) return;
    sessionStorage.setItem(KEPT, JSON.stringify(unfolded()));
    clearInterval(watching);
    location.reload();
  } catch {
    live.classList.add("bare");
    document.getElementById("words").textContent = "No longer watching: the server has stopped. This is what it showed last.";
  }
}, 1000);
