"""The style sheet of a report: light and dark, phone and wide screen."""

CSS = """
:root { color-scheme: light dark; --back: #f6f5f2; --card: #ffffff; --ink: #1d1f23; --soft: #5d636d;
  --rule: #dcdad4; --good: #1a7f4b; --good-back: #e3f4ea; --bad: #b3261e; --bad-back: #fbe7e5; --doubt: #8a5a00;
  --doubt-back: #fcf0d9; --c0: #2f6fb3; --c1: #d0772b; --c2: #2d9271;
  --c3: #9a4fb0; --c4: #b8920c; --c5: #6b7280; --heat: #2f6fb3; }
@media (prefers-color-scheme: dark) { :root { --back: #14161a; --card: #1d2026; --ink: #e7e8ea; --soft: #a0a7b2;
  --rule: #343943; --good: #6fd39b; --good-back: #16301f; --bad: #ff9d94; --bad-back: #3a1a18; --doubt: #f2c46d;
  --doubt-back: #33270f; --c0: #6ea8e6; --c1: #eda15d; --c2: #5cc7a2; --c3: #c98be0; --c4: #e0bf4a; --c5: #9ca3af;
  --heat: #4f8fd6; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--back); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1480px; margin: 0 auto; padding: 20px clamp(12px, 3vw, 40px) 60px; }
h1 { font-size: 1.35rem; margin: 4px 0 14px; letter-spacing: -0.01em; }
h2 { font-size: 1.12rem; margin: 0 0 10px; }
h3 { font-size: 0.95rem; margin: 0 0 6px; font-weight: 600; }
.verdict { border-radius: 12px; padding: 16px 20px; border: 1px solid; margin-bottom: 16px; }
.verdict strong { font-size: 1.3rem; display: block; line-height: 1.3; }
.verdict ul { margin: 8px 0 0; padding-left: 18px; color: var(--ink); }
.verdict.good { background: var(--good-back); color: var(--good); border-color: var(--good); }
.verdict.bad { background: var(--bad-back); color: var(--bad); border-color: var(--bad); }
.verdict.doubtful { background: var(--doubt-back); color: var(--doubt); border-color: var(--doubt); }
nav { display: flex; flex-wrap: wrap; gap: 6px 14px; margin-bottom: 18px; font-size: 0.9rem; }
nav a { color: var(--soft); text-decoration: none; border-bottom: 1px solid var(--rule); }
nav a:hover { color: var(--ink); }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 18px 20px;
  margin-bottom: 16px; scroll-margin-top: 10px; min-width: 0; }
p { margin: 0 0 10px; max-width: 80ch; overflow-wrap: anywhere; }
p.good, td.good { color: var(--good); } p.bad, td.bad { color: var(--bad); }
p.doubtful, td.doubtful { color: var(--doubt); }
td.good, td.bad, td.doubtful { font-weight: 600; }
.scroll { overflow-x: auto; margin: 0 0 12px; min-width: 0; }
table { border-collapse: collapse; min-width: min(100%, 320px); max-width: 100%;
  font-size: 0.88rem; font-variant-numeric: tabular-nums; }
table.wide { width: 100%; }
caption { caption-side: bottom; text-align: left; color: var(--soft); padding-top: 6px; font-size: 0.85rem; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--rule); }
th, td { padding: 5px 12px 5px 0; vertical-align: top; }
td { border-bottom: 1px solid color-mix(in srgb, var(--rule) 55%, transparent); overflow-wrap: anywhere;
  min-width: 3.5em; }
th.number { text-align: right; } td.number { text-align: right; white-space: nowrap; }
th.heat { text-align: center; overflow-wrap: anywhere; font-size: 0.82rem; }
td.word { white-space: nowrap; }
td.heat { text-align: center; padding: 6px 10px; white-space: nowrap; border: 2px solid var(--card);
  background: color-mix(in srgb, var(--heat) calc(6% + var(--share) * 64%), transparent); }
.charts { display: grid; gap: 16px 28px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr));
  margin: 4px 0 12px; align-items: start; }
figure { margin: 0; min-width: 0; }
figcaption { color: var(--soft); font-size: 0.85rem; }
svg { width: 100%; max-width: 520px; height: auto; display: block; overflow: visible; }
svg text { font-size: 11px; fill: var(--soft); } svg text.name { fill: var(--ink); font-size: 11.5px; }
svg text.label { fill: var(--ink); }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .base { stroke: var(--rule); stroke-width: 2; }
svg .track { fill: color-mix(in srgb, var(--rule) 45%, transparent); }
svg .limit { stroke: var(--bad); stroke-width: 2.5; } svg .mark { stroke: var(--ink); stroke-width: 1.5; }
svg .line { fill: none !important; stroke-width: 2.2; stroke-linejoin: round; }
svg .dashed { stroke-dasharray: 5 4; } svg .dot { opacity: 0.45; }
svg .c0 { fill: var(--c0); stroke: var(--c0); } svg .c1 { fill: var(--c1); stroke: var(--c1); }
svg .c2 { fill: var(--c2); stroke: var(--c2); } svg .c3 { fill: var(--c3); stroke: var(--c3); }
svg .c4 { fill: var(--c4); stroke: var(--c4); } svg .c5 { fill: var(--c5); stroke: var(--c5); }
svg rect, svg circle { stroke-width: 0; }
details { margin: 6px 0; } summary { cursor: pointer; color: var(--soft); font-size: 0.9rem; padding: 3px 0; }
details[open] > summary { color: var(--ink); margin-bottom: 6px; }
pre { background: var(--back); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 12px; margin: 0;
  overflow: auto; max-height: 420px; font: 12px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
footer { color: var(--soft); font-size: 0.85rem; }
@media (max-width: 560px) { section { padding: 14px 12px; border-radius: 10px; } th, td { padding-right: 9px; }
  table { font-size: 0.82rem; } .verdict strong { font-size: 1.12rem; } }
@media print { section { break-inside: avoid; } details > * { display: block; } }
"""
