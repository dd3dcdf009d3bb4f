fn main() {
    let dir = std::path::PathBuf::from(std::env::args().nth(1).expect("dir"));
    let run: vmeter_model::RunRecord =
        serde_json::from_slice(&std::fs::read(dir.join("run.json")).expect("run")).expect("json");
    let (mut events, warnings) = vmeter_record::decode::events(&dir, &run);
    events.sort_by_key(|e| e.at);
    for e in events {
        println!(
            "{:.6} ±{:.6} {} {:?}",
            e.at as f64 / 1e9,
            e.error_ns as f64 / 1e9,
            e.source,
            e.what
        );
    }
    for w in warnings {
        println!("W {w}");
    }
}
