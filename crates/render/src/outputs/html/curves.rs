//! Curves as SVG: lines on one axis, a legend above.

use super::escape;
use crate::chart::{ticks, Curve, Curves};
use crate::palette::{Colour, Group};
use std::fmt::Write;

/// Size of the drawing, in its own units: text keeps its size by the page's style.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;
/// Room for the axes' numbers.
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 24.0;

/// Colours that tell neighbours apart.
const GROUPS: [Group; 6] = [
    Group::Kernel,
    Group::Userspace,
    Group::Vmm,
    Group::Initcalls,
    Group::Shutdown,
    Group::Firmware,
];

/// Appends to a String, which cannot fail.
macro_rules! add {
    ($out:expr, $($format:tt)+) => { let _ = write!($out, $($format)+); };
}

fn colour(n: usize) -> String {
    super::svg::class(Colour { group: GROUPS[n % GROUPS.len()], bright: false })
}

/// All curves in one drawing.
pub(super) fn curves(curves: &Curves) -> String {
    let (end, most) = curves.range();
    let mut out = String::new();
    if !(end > 0.0 && most > 0.0) {
        return out;
    }
    out.push_str("<div class=\"legend\">");
    for (n, curve) in curves.curves.iter().enumerate() {
        let class = colour(n);
        add!(
            out,
            "<span><svg width=\"11\" height=\"11\"><rect class=\"{class}\" width=\"11\" \
             height=\"11\"/></svg>{}</span>",
            escape(&curve.label)
        );
    }
    out.push_str("</div>\n");
    add!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"100%\" role=\"img\">");
    add!(out, "<title>{}</title>", escape(&curves.caption));
    let x = |at: f64| LEFT + (WIDTH - LEFT - 8.0) * (at / end).clamp(0.0, 1.0);
    let y = |value: f64| 8.0 + (HEIGHT - BOTTOM - 8.0) * (1.0 - (value / most).clamp(0.0, 1.0));
    let (floor, right) = (y(0.0), x(end));
    for tick in ticks(end, 9) {
        let at = x(tick);
        add!(
            out,
            "<line class=\"tick\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"8\" y2=\"{floor:.1}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} s</text>",
            HEIGHT - 6.0,
            label(tick)
        );
    }
    for tick in ticks(most, 4) {
        let at = y(tick);
        add!(
            out,
            "<line class=\"tick\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} {}</text>",
            LEFT - 6.0,
            at + 4.0,
            label(tick),
            escape(&curves.unit)
        );
    }
    for (n, curve) in curves.curves.iter().enumerate() {
        line(&mut out, curve, &colour(n), x, y);
    }
    out.push_str("</svg>\n");
    out
}

fn label(tick: f64) -> String {
    let text = format!("{tick:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn line(
    out: &mut String,
    curve: &Curve,
    class: &str,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) {
    let finite = curve.points.iter().filter(|(at, value)| at.is_finite() && value.is_finite());
    let points = finite.map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value)));
    let points = points.collect::<Vec<_>>().join(" ");
    add!(
        out,
        "<polyline class=\"curve {class}\" points=\"{points}\"><title>{}</title></polyline>",
        escape(&curve.label)
    );
}
