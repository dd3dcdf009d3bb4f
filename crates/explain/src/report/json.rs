//! The JSON body of an explanation. Field names are fixed by schema `vmeter/1`.

use crate::result::{self, ExplainResult};
use std::collections::BTreeMap;
use vmeter_render::exported;

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of ExplainResult {
        files: Vec<File<'a>>,
        duration_s: Option<f64>,
        followed: Vec<Followed<'a>>,
        vcpus: Vec<Vcpu<'a>>,
        findings: Vec<Finding<'a>>,
        warnings: &'a [String],
    }

    struct File<'a> of result::ExplainedFile {
        file: &'a str,
        format: &'a str,
        clock: &'a str,
        events: u64,
        lost_events: u64,
        alignment: Alignment<'a>,
    }

    struct Followed<'a> of result::Followed {
        subject: &'a str,
        because: &'a str,
    }

    struct Alignment<'a> of result::Alignment {
        method: &'a str,
        offset_s: f64,
        drift_ppm: f64,
        error_s: Option<f64>,
        pairs: u64,
    }

    struct Vcpu<'a> of result::VcpuSplit {
        vcpu: &'a str,
        total_s: Option<f64>,
        parts: Vec<Part<'a>>,
    }

    struct Part<'a> of result::VcpuPart {
        name: &'a str,
        time_s: Option<f64>,
        share: f64,
    }

    struct Finding<'a> of result::Finding {
        kind: &'static str = |finding| finding.kind.name(),
        #[serde(skip_serializing_if = "Option::is_none")]
        modifier: Option<&'static str> = |finding| finding.modifier.map(|modifier| modifier.name()),
        severity: &'static str = |finding| finding.severity.name(),
        subject: &'a str,
        summary: &'a str,
        saving_s: Option<f64>,
        saving_ci95_s: Option<[f64; 2]>,
        saving_share: f64,
        chain: Vec<Link<'a>>,
        suggestion: &'a str,
        confirm: &'a str,
    }

    struct Link<'a> of result::Link {
        claim: &'a str,
        evidence: Evidence<'a>,
    }

    struct Evidence<'a> of result::Evidence {
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        total_s: Option<f64>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        figures: BTreeMap<&'a str, f64>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        events: Vec<Event<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        lost_events: Option<u64>,
    }

    struct Event<'a> of result::EventRef {
        file: &'a str,
        timestamp: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        age_s: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tid: Option<i32>,
        event: &'a str,
    }
}
