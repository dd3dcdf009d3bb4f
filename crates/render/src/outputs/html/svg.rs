//! Charts as SVG. Horizontal positions are percentages and vertical ones
//! pixels, so a page of any width keeps its text undistorted.

use super::escape;
use crate::chart::{ticks, Chart, Lane, Segment, Strip, Strips};
use crate::palette::Colour;
use crate::quantity::{compact_seconds, grouped, percent, Unit};
use std::fmt::Write;
use vmeter_base::{seconds, Ns};

/// Height of a lane, px.
const LANE: usize = 20;
/// Height of the axis, px.
const AXIS: usize = 20;
/// A stretch this wide, in percent, has its name written in it.
const LABELLED: f64 = 4.0;

/// Appends to a String, which cannot fail.
macro_rules! add {
    ($out:expr, $($format:tt)+) => { let _ = write!($out, $($format)+); };
}

pub(super) fn class(colour: Colour) -> String {
    format!("{}{}", colour.group.class(), if colour.bright { " b" } else { "" })
}

/// Lanes on a time axis.
pub(super) fn chart(chart: &Chart) -> String {
    let mut out = legend(chart);
    add!(out, "<div class=\"chart\"><div class=\"lanes\"><div style=\"height:{AXIS}px\"></div>");
    for lane in &chart.lanes {
        let inner = if lane.depth > 0 { " class=\"inner\"" } else { "" };
        let name = escape(&lane.name);
        add!(out, "<div{inner} style=\"height:{LANE}px\" title=\"{name}\">{name}</div>");
    }
    let height = AXIS + LANE * chart.lanes.len();
    add!(out, "</div><div><svg width=\"100%\" height=\"{height}\" role=\"img\">");
    add!(out, "<title>{}</title>", escape(&chart.caption));
    out.push_str(&axis(seconds(chart.total), height));
    for (at, lane) in chart.lanes.iter().enumerate() {
        draw_lane(&mut out, lane, AXIS + LANE * at, chart.total.max(1));
    }
    for (at, text) in &chart.marks {
        let x = 100.0 * *at as f64 / chart.total.max(1) as f64;
        let when = compact_seconds(seconds(*at));
        add!(
            out,
            "<line class=\"mark\" x1=\"{x:.3}%\" x2=\"{x:.3}%\" y1=\"{AXIS}\" y2=\"{height}\">\
             <title>{}: {}</title></line>",
            escape(&when),
            escape(text)
        );
    }
    out.push_str("</svg></div></div>\n");
    out
}

fn legend(chart: &Chart) -> String {
    let mut out = String::new();
    if chart.legend.is_empty() {
        return out;
    }
    out.push_str("<div class=\"legend\">");
    for (name, colour) in &chart.legend {
        add!(
            out,
            "<span><svg width=\"11\" height=\"11\"><rect class=\"{}\" width=\"11\" height=\"11\"/>\
             </svg>{}</span>",
            class(*colour),
            escape(name)
        );
    }
    out.push_str("</div>\n");
    out
}

/// Round numbers with lines through all lanes; `end` in seconds.
fn axis(end: f64, height: usize) -> String {
    let mut out = String::new();
    let scale = Unit::Seconds.scale_for(end);
    for tick in ticks(end / scale.factor, 9) {
        let x = 100.0 * tick * scale.factor / end;
        if x > 96.0 {
            continue;
        }
        let label = format!("{tick:.4}");
        let label = label.trim_end_matches('0').trim_end_matches('.');
        add!(
            out,
            "<line class=\"tick\" x1=\"{x:.3}%\" x2=\"{x:.3}%\" y1=\"4\" y2=\"{height}\"/>\
             <text x=\"{x:.3}%\" dx=\"3\" y=\"13\">{label} {}</text>",
            escape(scale.suffix)
        );
    }
    out
}

fn draw_lane(out: &mut String, lane: &Lane, y: usize, total: Ns) {
    for segment in &lane.segments {
        let share = |ns: Ns| 100.0 * (ns as f64 / total as f64).clamp(0.0, 1.0);
        let (from, to) = (share(segment.start), share(segment.end));
        let (width, height) = ((to - from).max(0.02), LANE - 3);
        let class = class(segment.colour);
        let title = escape_lines(&segment_title(segment, total));
        if to - from < LABELLED || !lane.name.is_empty() {
            add!(
                out,
                "<rect class=\"{class}\" x=\"{from:.4}%\" width=\"{width:.4}%\" y=\"{y}\" \
                 height=\"{height}\"><title>{title}</title></rect>"
            );
            continue;
        }
        let dark = if segment.colour.bright { " dark" } else { "" };
        let label = escape(&segment.name);
        add!(
            out,
            "<svg x=\"{from:.4}%\" width=\"{width:.4}%\" y=\"{y}\" height=\"{height}\">\
             <title>{title}</title><rect class=\"{class} edge\" width=\"100%\" height=\"100%\"/>\
             <text class=\"in{dark}\" x=\"4\" y=\"12.5\">{label}</text></svg>"
        );
    }
}

fn segment_title(segment: &Segment, total: Ns) -> [String; 4] {
    let length = segment.end.saturating_sub(segment.start);
    let share = length as f64 / total as f64;
    let insns = segment.insns.map_or(String::new(), |insns| {
        format!("{} guest instructions", grouped(&insns.to_string()))
    });
    [
        segment.name.clone(),
        format!(
            "{} ({}), from {} to {}",
            compact_seconds(seconds(length)),
            percent(share),
            compact_seconds(seconds(segment.start)),
            compact_seconds(seconds(segment.end)),
        ),
        insns,
        format!(
            "seen by {}, within {}",
            segment.source,
            compact_seconds(seconds(segment.error_ns))
        ),
    ]
}

fn escape_lines(lines: &[String]) -> String {
    let shown = lines.iter().filter(|line| !line.is_empty());
    shown.map(|line| escape(line)).collect::<Vec<_>>().join("\n")
}

/// Samples on a common axis.
pub(super) fn strips(strips: &Strips) -> String {
    let samples = || strips.strips.iter().flat_map(|s| s.samples.iter().copied());
    let low = samples().filter(|s| s.is_finite()).fold(f64::INFINITY, f64::min);
    let high = samples().filter(|s| s.is_finite()).fold(f64::NEG_INFINITY, f64::max);
    let mut out = String::new();
    if low > high {
        return out;
    }
    let room = ((high - low) * 0.05).max(high.abs() * 1e-6).max(1e-9);
    let range = (low - room, high + room);
    let height = AXIS + LANE * strips.strips.len();
    add!(out, "<div class=\"chart\"><div class=\"lanes\"><div style=\"height:{AXIS}px\"></div>");
    for strip in &strips.strips {
        let label = escape(&strip.label);
        add!(out, "<div style=\"height:{LANE}px\" title=\"{label}\">{label}</div>");
    }
    add!(out, "</div><div><svg width=\"100%\" height=\"{height}\" role=\"img\">");
    add!(out, "<title>{}</title>", escape(&strips.caption));
    for tick in 0..=4 {
        let x = 25.0 * f64::from(tick);
        let at = compact_seconds(range.0 + (range.1 - range.0) * x / 100.0);
        let anchor = ["start", "middle", "middle", "middle", "end"][tick as usize];
        add!(
            out,
            "<line class=\"tick\" x1=\"{x}%\" x2=\"{x}%\" y1=\"{AXIS}\" y2=\"{height}\"/>\
             <text x=\"{x}%\" y=\"13\" text-anchor=\"{anchor}\">{}</text>",
            escape(&at)
        );
    }
    for (at, strip) in strips.strips.iter().enumerate() {
        draw_strip(&mut out, strip, AXIS + LANE * at + LANE / 2, range);
    }
    out.push_str("</svg></div></div>\n");
    out
}

fn draw_strip(out: &mut String, strip: &Strip, y: usize, range: (f64, f64)) {
    let x = |value: f64| {
        let share = 100.0 * (value - range.0) / (range.1 - range.0);
        if share.is_finite() {
            share.clamp(0.0, 100.0)
        } else {
            0.0
        }
    };
    let [from, to] = strip.estimate.ci95.map(x);
    add!(
        out,
        "<rect class=\"interval\" x=\"{from:.3}%\" width=\"{:.3}%\" y=\"{}\" height=\"14\">\
         <title>95 % interval of the mean</title></rect>",
        (to - from).max(0.0),
        y - 7
    );
    for (at, sample) in strip.samples.iter().enumerate() {
        let class = if strip.outliers.contains(&at) { "dot outlier" } else { "dot" };
        add!(
            out,
            "<circle class=\"{class}\" cx=\"{:.3}%\" cy=\"{y}\" r=\"4\"><title>run {at}: {}</title>\
             </circle>",
            x(*sample),
            escape(&compact_seconds(*sample))
        );
    }
    let mean = x(strip.estimate.mean);
    add!(
        out,
        "<line class=\"mean\" x1=\"{mean:.3}%\" x2=\"{mean:.3}%\" y1=\"{}\" y2=\"{}\"/>",
        y - 8,
        y + 8
    );
}

/// A bar in a table.
pub(super) fn bar(from: f64, to: f64, colour: Colour) -> String {
    let clean = |share: f64| if share.is_finite() { share.clamp(0.0, 1.0) * 100.0 } else { 0.0 };
    let (from, to) = (clean(from), clean(to));
    format!(
        "<svg width=\"180\" height=\"11\"><rect class=\"{}\" x=\"{from:.2}%\" width=\"{:.2}%\" \
         height=\"11\"/></svg>",
        class(colour),
        (to - from).max(0.0)
    )
}

/// A small curve in a table.
pub(super) fn spark(samples: &[f64]) -> String {
    let finite: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let step = 118.0 / (finite.len().max(2) - 1) as f64;
    let points = finite.iter().enumerate().map(|(at, sample)| {
        let share = if high > low { (sample - low) / (high - low) } else { 0.5 };
        format!("{:.1},{:.1}", 1.0 + step * at as f64, 17.0 - 15.0 * share)
    });
    let points = points.collect::<Vec<_>>().join(" ");
    format!(
        "<svg width=\"120\" height=\"18\"><polyline class=\"spark\" points=\"{points}\"/></svg>"
    )
}
