"""The report's look."""

STYLE = """
:root{color-scheme:light dark;--bg:#f7f8fa;--card:#fff;--ink:#17202b;--soft:#5b6776;--rule:#dfe4ea;
--s0:#2f6fb0;--s1:#7a5ea8;--s2:#1f8a70;--s3:#c77d1e;--s4:#b8476b;--s5:#3a8fb7;--s6:#6b7a2a;--s7:#8a5a3c;
--good:#2a9d6f;--late:#e0a030;--refused:#7f8ea3;--failed:#c8453b;--target:#c8453b;--line:#17202b}
@media (prefers-color-scheme:dark){:root{--bg:#11161d;--card:#19212b;--ink:#e4e9f0;--soft:#96a3b4;
--rule:#2c3744;
--s0:#6aa9e9;--s1:#b497e6;--s2:#4fc3a1;--s3:#f0ab4f;--s4:#ee86a7;--s5:#72c6ea;--s6:#b3c65b;--s7:#cf9a78;
--good:#4cc38f;--late:#f2bd55;--refused:#8795a9;--failed:#f07167;--target:#f07167;--line:#e4e9f0}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 24px 64px}
header{margin-bottom:20px}h1{font-size:26px;margin:0;line-height:1.2}h2{font-size:18px;margin:36px 0 10px}
h3{font-size:14px;margin:0 0 6px;font-weight:600}
.kicker{margin:0 0 4px;color:var(--s0);font-weight:600;letter-spacing:.08em;text-transform:uppercase;
font-size:12px}
.where{margin:6px 0 0;font-family:ui-monospace,Menlo,Consolas,monospace;font-size:14px;
overflow-wrap:anywhere}
.when,figcaption{margin:2px 0 0;color:var(--soft);font-size:13px}
.warning{background:var(--card);border-left:4px solid var(--late);padding:10px 14px;margin:8px 0;
border-radius:4px}
.finding{background:var(--card);border-left:4px solid var(--good);padding:10px 14px;margin:8px 0;
border-radius:4px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:18px 0}
.cards div{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px 14px}
.cards b{display:block;font-weight:500;color:var(--soft);font-size:13px}
.cards strong{display:block;font-size:23px;line-height:1.3;font-variant-numeric:tabular-nums;
white-space:nowrap}
.cards span{color:var(--soft);font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:14px 14px 10px}
svg{display:block;width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12.5px;color:var(--soft);margin-bottom:4px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px;
vertical-align:-1px;
background:currentColor}
text{fill:var(--soft);font-size:12px}.note{font-weight:600;font-size:11.5px;paint-order:stroke;
stroke:var(--card);
stroke-width:4px;stroke-linejoin:round}
.legend i.tail,.legend i.median,.legend i.ideal{height:0;width:18px;border-top:2px solid;
background:none;vertical-align:4px}
.legend i.tail{border-top-style:dashed}.legend i.ideal{border-top-style:dotted}
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.dot,.bar{fill:currentColor}.dot{fill-opacity:.55}
.mark{stroke:currentColor;stroke-dasharray:4 3}.note{fill:currentColor}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}
.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
.good{color:var(--good)}.late{color:var(--late)}.refused{color:var(--refused)}.failed{color:var(--failed)}
.target{color:var(--target)}.quantile,.median,.tail{color:var(--line)}.tail{stroke-dasharray:5 3;
stroke-width:1.5}
.round,.ideal{color:var(--soft)}.ideal{stroke-dasharray:2 4}.mark.round{stroke-opacity:.5}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:8px;margin:10px 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 14px;text-align:right;white-space:nowrap}th:first-child{text-align:left;font-weight:600}
thead th{color:var(--soft);font-weight:500;border-bottom:1px solid var(--rule)}
tbody tr+tr>*{border-top:1px solid var(--rule)}tbody th{font-weight:500}
ul{margin:6px 0;padding-left:20px}li{overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:0}dt{color:var(--soft)}
dd{margin:0}
@media print{body{background:#fff}figure,.scroll,.cards div{break-inside:avoid}}
"""
