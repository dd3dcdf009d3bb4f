//! The JSON of every command against the fixed surface, field by field.

use crate::reports::{results, text};
use serde_json::Value;
use vmeter_lab::bench::report::BenchReport;
use vmeter_lab::boot::report::BootReport;
use vmeter_lab::sweep::report::SweepReport;

/// What a field holds.
enum Kind {
    Text,
    Number,
    Truth,
    Estimate,
    Texts,
    Numbers,
    /// An object of estimates.
    Estimates,
    Object,
    /// An array of objects with these fields.
    Each(&'static [(&'static str, Kind)]),
    /// Absent or of this kind.
    Maybe(&'static Kind),
    /// Null or of this kind.
    OrNull(&'static Kind),
}
use Kind::*;

fn check(value: &Value, kind: &Kind, path: &str) {
    let all = |matches: fn(&Value) -> bool| {
        value.as_array().is_some_and(|array| array.iter().all(matches))
    };
    match kind {
        Text => assert!(value.is_string(), "{path}: {value}"),
        Number => assert!(value.is_number(), "{path}: {value}"),
        Truth => assert!(value.is_boolean(), "{path}: {value}"),
        Object => assert!(value.is_object(), "{path}: {value}"),
        Texts => assert!(all(Value::is_string), "{path}: {value}"),
        Numbers => assert!(all(Value::is_number), "{path}: {value}"),
        Estimate => check_estimate(value, path),
        Estimates => {
            for (name, estimate) in value.as_object().expect(path) {
                check_estimate(estimate, &format!("{path}.{name}"));
            }
        }
        Each(fields) => {
            for (at, item) in value.as_array().expect(path).iter().enumerate() {
                check_fields(item, fields, &format!("{path}[{at}]"));
            }
        }
        Maybe(kind) => check(value, kind, path),
        OrNull(kind) if !value.is_null() => check(value, kind, path),
        OrNull(_) => {}
    }
}

fn check_estimate(value: &Value, path: &str) {
    let fields: Vec<&str> = value.as_object().expect(path).keys().map(String::as_str).collect();
    assert_eq!(fields, ["ci95", "max", "mean", "median", "min", "n", "sd"], "{path}");
    assert_eq!(value["ci95"].as_array().map(Vec::len), Some(2), "{path}");
    assert!(value["n"].is_u64(), "{path}");
}

fn check_fields(value: &Value, fields: &[(&str, Kind)], path: &str) {
    for (name, kind) in fields {
        match value.get(name) {
            Some(field) => check(field, kind, &format!("{path}.{name}")),
            None => assert!(matches!(kind, Maybe(_)), "{path}.{name} is missing"),
        }
    }
}

const ENVELOPE: &[(&str, Kind)] = &[
    ("schema", Text),
    ("command", Text),
    ("argv", Texts),
    ("started_at", Text),
    ("host", Object),
    ("provenance", Object),
];

const SPAN: &[(&str, Kind)] = &[
    ("id", Number),
    ("parent", OrNull(&Number)),
    ("name", Text),
    ("start_s", Number),
    ("end_s", Number),
    ("insns", Maybe(&Number)),
    ("source", Text),
    ("error_s", Number),
];

const BOOT: &[(&str, Kind)] = &[
    ("machine", Object),
    ("total", OrNull(&Estimate)),
    ("phases", Each(&[("name", Text), ("estimate", Estimate), ("share", Number)])),
    ("counts", Estimates),
    (
        "runs",
        Each(&[
            ("index", Number),
            ("outcome", Text),
            ("warmup", Truth),
            ("watch", Text),
            ("total_s", Number),
            ("coverage", Number),
            ("steal_s", Number),
            ("usage", Object),
            ("argv", Texts),
            ("injected", Texts),
            ("warnings", Texts),
            ("counts", Object),
            ("marks", Each(&[("at_s", Number), ("text", Text)])),
            ("spans", Each(SPAN)),
            ("overlapping", Each(SPAN)),
        ]),
    ),
    (
        "stages",
        Each(&[("name", Text), ("estimate", Estimate), ("share", Number), ("error_s", Number)]),
    ),
    (
        "largest",
        Each(&[
            ("name", Text),
            ("phase", Text),
            ("estimate", Estimate),
            ("error_s", Number),
            ("remedy", Text),
        ]),
    ),
    (
        "causes",
        Each(&[
            ("id", Text),
            ("what", Text),
            ("remedy", Text),
            ("at_most_s", Number),
            ("seen_in", Number),
        ]),
    ),
    (
        "activities",
        Each(&[
            ("name", Text),
            ("phase", Text),
            ("estimate", Estimate),
            ("own", Estimate),
            ("insns", OrNull(&Estimate)),
            ("seen_in", Number),
        ]),
    ),
    ("outliers", Numbers),
    ("warnings", Texts),
    ("hints", Texts),
    ("saved_in", Text),
];

const BENCH: &[(&str, Kind)] = &[
    (
        "machines",
        Each(&[
            ("label", Text),
            ("samples_s", Numbers),
            ("estimate", Estimate),
            ("cpu", Estimate),
            ("cpu_samples_s", Numbers),
            ("max_rss_bytes", Number),
            ("failures", Each(&[("run", Number), ("outcome", Object)])),
            ("outliers", Numbers),
            ("machine", Object),
        ]),
    ),
    (
        "comparisons",
        Each(&[
            ("a", Text),
            ("b", Text),
            ("ratio", Estimate),
            ("cpu_ratio", Estimate),
            ("p_value", Number),
            ("verdict", Text),
        ]),
    ),
    ("warnings", Texts),
    ("hints", Texts),
    ("saved_in", Text),
];

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn boot_has_the_fields_of_the_schema() {
    for result in
        [results::boot::boot(3, true), results::boot::boot(1, false), results::boot::failed_boot()]
    {
        let json = parsed(&text("json", &BootReport::new(&result)));
        check_fields(&json, ENVELOPE, "envelope");
        check_fields(&json, BOOT, "boot");
        assert_eq!(json["schema"], vmeter_model::SCHEMA);
        let overhead = &json["overhead"];
        check(&overhead["ratio"], &Estimate, "overhead.ratio");
        assert_eq!(overhead["pairs"], 12);
    }
}

#[test]
fn overhead_is_there_only_if_measured() {
    let mut result = results::boot::boot(1, false);
    result.overhead = None;
    let json = parsed(&text("json", &BootReport::new(&result)));
    assert!(json.get("overhead").is_none());
}

#[test]
fn bench_has_the_fields_of_the_schema() {
    let json = parsed(&text("json", &BenchReport::new(&results::boot::bench())));
    check_fields(&json, ENVELOPE, "envelope");
    check_fields(&json, BENCH, "bench");
    let verdicts = ["faster", "slower", "no difference found"];
    for comparison in json["comparisons"].as_array().expect("comparisons") {
        assert!(verdicts.contains(&comparison["verdict"].as_str().expect("a verdict")));
    }
}

/// Nanoseconds of a JSON number, read as the decimal that it is.
fn exact_ns(number: &Value) -> i64 {
    let text = number.to_string();
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let shift = 9 + exponent.parse::<i32>().expect("an exponent") - fraction.len() as i32;
    let value: i64 = format!("{whole}{fraction}").parse().expect("digits");
    if shift >= 0 {
        return value * 10i64.pow(shift as u32);
    }
    let unit = 10i64.pow(-shift as u32);
    assert_eq!(value % unit, 0, "{number} has more than nine decimals");
    value / unit
}

#[test]
fn spans_are_exact_and_their_leaves_add_up() {
    let result = results::boot::boot(10, true);
    let json = parsed(&text("json", &BootReport::new(&result)));
    for (run, shown) in result.runs.iter().zip(json["runs"].as_array().expect("runs")) {
        assert_eq!(exact_ns(&shown["total_s"]), run.timeline.total);
        let spans = shown["spans"].as_array().expect("spans");
        for (span, shown) in run.timeline.spans.iter().zip(spans) {
            assert_eq!(exact_ns(&shown["start_s"]), span.start);
            assert_eq!(exact_ns(&shown["end_s"]), span.end);
            assert_eq!(exact_ns(&shown["error_s"]), span.error_ns);
        }
        let is_parent = |id: &Value| spans.iter().any(|s| &s["parent"] == id);
        let leaves = spans.iter().filter(|span| !is_parent(&span["id"]));
        let length = |span: &Value| Some(span["end_s"].as_f64()? - span["start_s"].as_f64()?);
        let sum: f64 = leaves.filter_map(length).sum();
        let total = shown["total_s"].as_f64().expect("a number");
        assert!((sum - total).abs() < 1e-6, "{sum} {total}");
    }
}

#[test]
fn a_day_still_has_its_nanoseconds() {
    let mut result = results::boot::boot(1, false);
    for total in [1, 999, 86_400_000_000_001, 864_123_456_789_012] {
        result.runs[0].timeline.total = total;
        let json = parsed(&text("json", &BootReport::new(&result)));
        assert_eq!(exact_ns(&json["runs"][0]["total_s"]), total);
    }
}

#[test]
fn outcomes_are_words_with_their_failure_beside_them() {
    let json = parsed(&text("json", &BootReport::new(&results::boot::failed_boot())));
    let outcomes: Vec<&Value> =
        json["runs"].as_array().expect("runs").iter().map(|run| &run["outcome"]).collect();
    assert_eq!(outcomes, ["panicked", "vmm-failed", "timed-out"]);
    assert_eq!(json["runs"][0]["failure"]["kind"], "panicked");
    assert_eq!(json["total"], Value::Null);
}

#[test]
fn sweep_json_has_the_fields_that_scripts_rely_on() {
    let report = results::sweep::sweep();
    let json: Value =
        serde_json::from_str(&text("json", &SweepReport::new(&report))).expect("JSON");
    assert_eq!(json["schema"], "vmeter/1");
    assert_eq!(json["points"][4]["parameters"], serde_json::json!({"pcie-root-ports": 4}));
    assert!(json["points"][0]["phases"][0]["estimate"]["ci95"].is_array());
    assert!(json["points"][0]["total"]["mean"].is_number());
    let total = &json["scaling"][0];
    assert_eq!(
        (&total["phase"], &total["parameter"]),
        (&"TOTAL".into(), &"pcie-root-ports".into())
    );
    assert_eq!(total["slope_s"], 0.035);
    assert_eq!(total["slope_ci95"].as_array().map(Vec::len), Some(2));
    let found = serde_json::json!({"between": [3.0, 4.0], "jump_s": 0.631, "p_value": 0.002});
    assert_eq!(total["breaks"], serde_json::json!([found]));
}
