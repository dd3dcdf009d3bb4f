//! Curves as SVG: lines on one axis, a legend above.

use super::{escape, Markup};
use crate::chart::{ticks, Curve, Curves};
use crate::markup;
use crate::palette::{Colour, Group};

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

fn colour(n: usize) -> Markup {
    super::svg::class(Colour { group: GROUPS[n % GROUPS.len()], bright: false })
}

/// All curves in one drawing.
pub(super) fn curves(curves: &Curves) -> Markup {
    let (end, most) = curves.range();
    let mut out = Markup::default();
    if !(end > 0.0 && most > 0.0) {
        return out;
    }
    out.push(markup!("<div class=\"legend\">"));
    out.extend(curves.curves.iter().enumerate().map(|(n, curve)| {
        markup!(
            "<span><svg width=\"11\" height=\"11\"><rect class=\"{}\" width=\"11\" \
             height=\"11\"/></svg>{}</span>",
            colour(n),
            escape(&curve.label)
        )
    }));
    out.push(markup!("</div>\n"));
    out.push(markup!(
        "<svg viewBox=\"0 0 {} {}\" width=\"100%\" role=\"img\"><title>{}</title>",
        WIDTH,
        HEIGHT,
        escape(&curves.caption)
    ));
    let x = |at: f64| LEFT + (WIDTH - LEFT - 8.0) * (at / end).clamp(0.0, 1.0);
    let y = |value: f64| 8.0 + (HEIGHT - BOTTOM - 8.0) * (1.0 - (value / most).clamp(0.0, 1.0));
    let (floor, right) = (y(0.0), x(end));
    out.extend(ticks(end, 9).into_iter().map(|tick| {
        markup!(
            "<line class=\"tick\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"8\" y2=\"{1:.1}\"/>\
             <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{3} s</text>",
            x(tick),
            floor,
            HEIGHT - 6.0,
            label(tick)
        )
    }));
    out.extend(ticks(most, 4).into_iter().map(|tick| {
        markup!(
            "<line class=\"tick\" x1=\"{0}\" x2=\"{1:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\"/>\
             <text x=\"{3:.1}\" y=\"{4:.1}\" text-anchor=\"end\">{5} {6}</text>",
            LEFT,
            right,
            y(tick),
            LEFT - 6.0,
            y(tick) + 4.0,
            label(tick),
            escape(&curves.unit)
        )
    }));
    out.extend(curves.curves.iter().enumerate().map(|(n, curve)| line(curve, n, x, y)));
    out.push(markup!("</svg>\n"));
    out
}

fn label(tick: f64) -> Markup {
    let text = format!("{tick:.3}");
    escape(text.trim_end_matches('0').trim_end_matches('.'))
}

fn line(curve: &Curve, n: usize, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> Markup {
    let finite = curve.points.iter().filter(|(at, value)| at.is_finite() && value.is_finite());
    let points = finite.map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value)));
    markup!(
        "<polyline class=\"curve {}\" points=\"{}\"><title>{}</title></polyline>",
        colour(n),
        escape(&points.collect::<Vec<_>>().join(" ")),
        escape(&curve.label)
    )
}
