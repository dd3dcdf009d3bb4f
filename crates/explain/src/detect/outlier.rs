//! A request that takes several times as long as its peers: the head of a chain.

use super::{Candidate, View};
use crate::evidence::subject::Key;
use crate::kind::Why;
use vmeter_render::quantity::{brief_percent, three_digits};

/// What stands out about a request, if it does.
pub fn outlier(view: &View<'_>, key: Key) -> Option<Candidate> {
    let peers = view.peers(key).filter(|peers| peers.slow)?;
    let subject = view.evidence.subjects.get(&key)?;
    let name = view.subject(key);
    let mean = subject.total as f64 / subject.timed.max(1) as f64;
    let median = subject.length.quantile(0.5).unwrap_or(mean);
    // What is so many times as long: the median as a rule, the mean if one in ten is by far.
    let own = match median >= peers.ratio * peers.typical * 0.99 {
        true => format!("median {} (mean {})", view.time(median), view.time(mean)),
        false => format!("mean {} (median {})", view.time(mean), view.time(median)),
    };
    let claim = format!(
        "{name}: {own}; the median is {} for {} others, so this one takes {} times as much. \
            If each of these {} {} took only the median time of the peers, all of them \
            together would take {} less. This difference is {} of the traced time",
        view.time(peers.typical),
        peers.count,
        three_digits(peers.ratio),
        subject.timed,
        view.instances(key),
        view.time(peers.excess as f64),
        brief_percent(view.share(peers.excess)),
    );
    let figures = [
        ("ratio_to_peers", peers.ratio),
        ("peers", peers.count as f64),
        ("median_ticks", median),
        ("peers_median_ticks", peers.typical),
    ];
    let first = subject.first.map(|place| (0, place));
    let chain = view.link(
        key.file,
        claim,
        (subject.timed, subject.total),
        &figures,
        &[first, subject.worst],
    );
    Some(Candidate {
        why: Why::Outlier,
        key: Some(key),
        summary: format!(
            "{name} is {}× as slow as its peers; what it waits for is not in the trace",
            three_digits(peers.ratio)
        ),
        subject: name,
        saving: peers.excess,
        chain: vec![chain],
        suggestion:
            "record what the device model's threads do during the slow request: system calls, \
                switches, wake-ups and work items"
                .into(),
        confirm: "vmeter explain -- COMMAND".into(),
        ..Candidate::default()
    })
}
