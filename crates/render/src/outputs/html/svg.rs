//! Charts as SVG. Horizontal positions are percentages and vertical ones
//! pixels, so a page of any width keeps its text undistorted.

use super::{escape, Markup};
use crate::chart::{clean_share, ticks, Chart, Lane, Segment, Strip, Strips};
use crate::markup;
use crate::palette::Colour;
use crate::quantity::{compact_seconds, grouped, percent, Unit};
use vmeter_base::{seconds, Ns};

/// Height of a lane, px.
const LANE: usize = 20;
/// Height of the axis, px.
const AXIS: usize = 20;
/// A stretch this wide, in percent, has its name written in it.
const LABELLED: f64 = 4.0;

/// The classes of a colour.
pub(super) fn class(colour: Colour) -> Markup {
    markup!("{}{}", colour.group.class(), if colour.bright { " b" } else { "" })
}

/// Names of lanes on the left, and the drawing opened beside them.
fn begin(names: Markup, caption: &str, lanes: usize) -> Markup {
    markup!(
        "<div class=\"chart\"><div class=\"lanes\"><div style=\"height:{}px\"></div>{}</div>\
         <div><svg width=\"100%\" height=\"{}\" role=\"img\"><title>{}</title>",
        AXIS,
        names,
        AXIS + LANE * lanes,
        escape(caption)
    )
}

/// Lanes on a time axis.
pub(super) fn chart(chart: &Chart) -> Markup {
    let mut out = legend(chart);
    let names = chart.lanes.iter().map(|lane| {
        let inner = if lane.depth > 0 { " class=\"inner\"" } else { "" };
        let name = escape(&lane.name);
        markup!("<div{0} style=\"height:{1}px\" title=\"{2}\">{2}</div>", inner, LANE, name)
    });
    out.push(begin(names.collect(), &chart.caption, chart.lanes.len()));
    let height = AXIS + LANE * chart.lanes.len();
    out.push(axis(seconds(chart.total), height));
    for (at, lane) in chart.lanes.iter().enumerate() {
        draw_lane(&mut out, lane, AXIS + LANE * at, chart.total.max(1));
    }
    out.extend(chart.marks.iter().map(|(at, text)| {
        markup!(
            "<line class=\"mark\" x1=\"{0:.3}%\" x2=\"{0:.3}%\" y1=\"{1}\" y2=\"{2}\">\
             <title>{3}: {4}</title></line>",
            100.0 * *at as f64 / chart.total.max(1) as f64,
            AXIS,
            height,
            escape(&compact_seconds(seconds(*at))),
            escape(text)
        )
    }));
    out.push(markup!("</svg></div></div>\n"));
    out
}

fn legend(chart: &Chart) -> Markup {
    if chart.legend.is_empty() {
        return Markup::default();
    }
    let entries = chart.legend.iter().map(|(name, colour)| {
        markup!(
            "<span><svg width=\"11\" height=\"11\"><rect class=\"{}\" width=\"11\" height=\"11\"/>\
             </svg>{}</span>",
            class(*colour),
            escape(name)
        )
    });
    markup!("<div class=\"legend\">{}</div>\n", entries.collect::<Markup>())
}

/// Round numbers with lines through all lanes; `end` in seconds.
fn axis(end: f64, height: usize) -> Markup {
    let scale = Unit::Seconds.scale_for(end);
    let places = ticks(end / scale.factor, 9).into_iter();
    let places = places.map(|tick| (tick, 100.0 * tick * scale.factor / end));
    let drawn = places.filter(|(_, x)| *x <= 96.0 || x.is_nan()).map(|(tick, x)| {
        let label = format!("{tick:.4}");
        markup!(
            "<line class=\"tick\" x1=\"{0:.3}%\" x2=\"{0:.3}%\" y1=\"4\" y2=\"{1}\"/>\
             <text x=\"{0:.3}%\" dx=\"3\" y=\"13\">{2} {3}</text>",
            x,
            height,
            escape(label.trim_end_matches('0').trim_end_matches('.')),
            escape(scale.suffix)
        )
    });
    drawn.collect()
}

fn draw_lane(out: &mut Markup, lane: &Lane, y: usize, total: Ns) {
    for segment in &lane.segments {
        let share = |ns: Ns| 100.0 * (ns as f64 / total as f64).clamp(0.0, 1.0);
        let (from, to) = (share(segment.start), share(segment.end));
        let (width, height) = ((to - from).max(0.02), LANE - 3);
        let class = class(segment.colour);
        let title = escape_lines(&segment_title(segment, total));
        if to - from < LABELLED || !lane.name.is_empty() {
            out.push(markup!(
                "<rect class=\"{}\" x=\"{:.4}%\" width=\"{:.4}%\" y=\"{}\" \
                 height=\"{}\"><title>{}</title></rect>",
                class,
                from,
                width,
                y,
                height,
                title
            ));
            continue;
        }
        let dark = if segment.colour.bright { " dark" } else { "" };
        out.push(markup!(
            "<svg x=\"{:.4}%\" width=\"{:.4}%\" y=\"{}\" height=\"{}\">\
             <title>{}</title><rect class=\"{} edge\" width=\"100%\" height=\"100%\"/>\
             <text class=\"in{}\" x=\"4\" y=\"12.5\">{}</text></svg>",
            from,
            width,
            y,
            height,
            title,
            class,
            dark,
            escape(&segment.name)
        ));
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

fn escape_lines(lines: &[String]) -> Markup {
    let shown = lines.iter().filter(|line| !line.is_empty());
    let broken = shown.enumerate().map(|(at, line)| {
        let line_end = if at > 0 { "\n" } else { "" };
        markup!("{}{}", line_end, escape(line))
    });
    broken.collect()
}

/// Samples on a common axis.
pub(super) fn strips(strips: &Strips) -> Markup {
    let samples = || strips.strips.iter().flat_map(|s| s.samples.iter().copied());
    let low = samples().filter(|s| s.is_finite()).fold(f64::INFINITY, f64::min);
    let high = samples().filter(|s| s.is_finite()).fold(f64::NEG_INFINITY, f64::max);
    if low > high {
        return Markup::default();
    }
    let room = ((high - low) * 0.05).max(high.abs() * 1e-6).max(1e-9);
    let range = (low - room, high + room);
    let height = AXIS + LANE * strips.strips.len();
    let names = strips.strips.iter().map(|strip| {
        let label = escape(&strip.label);
        markup!("<div style=\"height:{0}px\" title=\"{1}\">{1}</div>", LANE, label)
    });
    let mut out = begin(names.collect(), &strips.caption, strips.strips.len());
    let anchors = ["start", "middle", "middle", "middle", "end"];
    out.extend(anchors.into_iter().enumerate().map(|(tick, anchor)| {
        let x = 25.0 * tick as f64;
        let at = compact_seconds(range.0 + (range.1 - range.0) * x / 100.0);
        markup!(
            "<line class=\"tick\" x1=\"{0}%\" x2=\"{0}%\" y1=\"{1}\" y2=\"{2}\"/>\
             <text x=\"{0}%\" y=\"13\" text-anchor=\"{3}\">{4}</text>",
            x,
            AXIS,
            height,
            anchor,
            escape(&at)
        )
    }));
    for (at, strip) in strips.strips.iter().enumerate() {
        draw_strip(&mut out, strip, AXIS + LANE * at + LANE / 2, range);
    }
    out.push(markup!("</svg></div></div>\n"));
    out
}

fn draw_strip(out: &mut Markup, strip: &Strip, y: usize, range: (f64, f64)) {
    let x = |value: f64| {
        let share = 100.0 * (value - range.0) / (range.1 - range.0);
        if share.is_finite() {
            share.clamp(0.0, 100.0)
        } else {
            0.0
        }
    };
    let [from, to] = strip.estimate.ci95.map(x);
    out.push(markup!(
        "<rect class=\"interval\" x=\"{:.3}%\" width=\"{:.3}%\" y=\"{}\" height=\"14\">\
         <title>95 % interval of the mean</title></rect>",
        from,
        (to - from).max(0.0),
        y - 7
    ));
    out.extend(strip.samples.iter().enumerate().map(|(at, sample)| {
        let class = if strip.outliers.contains(&at) { "dot outlier" } else { "dot" };
        markup!(
            "<circle class=\"{}\" cx=\"{:.3}%\" cy=\"{}\" r=\"4\"><title>run {}: {}</title>\
             </circle>",
            class,
            x(*sample),
            y,
            at,
            escape(&compact_seconds(*sample))
        )
    }));
    out.push(markup!(
        "<line class=\"mean\" x1=\"{0:.3}%\" x2=\"{0:.3}%\" y1=\"{1}\" y2=\"{2}\"/>",
        x(strip.estimate.mean),
        y - 8,
        y + 8
    ));
}

/// A bar in a table.
pub(super) fn bar(from: f64, to: f64, colour: Colour) -> Markup {
    let (from, to) = (100.0 * clean_share(from), 100.0 * clean_share(to));
    markup!(
        "<svg width=\"180\" height=\"11\"><rect class=\"{}\" x=\"{:.2}%\" width=\"{:.2}%\" \
         height=\"11\"/></svg>",
        class(colour),
        from,
        (to - from).max(0.0)
    )
}

/// What was expected, and over it what was found, in a table.
pub(super) fn range(expected: [f64; 2], found: [f64; 2], centre: f64) -> Markup {
    let at = |share: f64| 100.0 * clean_share(share);
    let ([low, high], [from, to], centre) = (expected.map(at), found.map(at), at(centre));
    markup!(
        "<svg width=\"240\" height=\"15\"><rect class=\"interval\" x=\"{:.2}%\" width=\"{:.2}%\" \
         height=\"15\"/><line class=\"mean\" x1=\"{:.2}%\" x2=\"{:.2}%\" y1=\"7.5\" y2=\"7.5\"/>\
         <line class=\"mean\" x1=\"{4:.2}%\" x2=\"{4:.2}%\" y1=\"1\" y2=\"14\"/></svg>",
        low,
        (high - low).max(0.0),
        from,
        to,
        centre
    )
}

/// A small curve in a table.
pub(super) fn spark(samples: &[f64]) -> Markup {
    let finite: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let step = 118.0 / (finite.len().max(2) - 1) as f64;
    let points = finite.iter().enumerate().map(|(at, sample)| {
        let share = if high > low { (sample - low) / (high - low) } else { 0.5 };
        format!("{:.1},{:.1}", 1.0 + step * at as f64, 17.0 - 15.0 * share)
    });
    markup!(
        "<svg width=\"120\" height=\"18\"><polyline class=\"spark\" points=\"{}\"/></svg>",
        escape(&points.collect::<Vec<_>>().join(" "))
    )
}
