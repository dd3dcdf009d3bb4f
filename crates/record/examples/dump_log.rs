fn main() {
    let f = std::env::args().nth(1).expect("file");
    let d = vmeter_kernel_image::printk::PrintkDump::from_bytes(&std::fs::read(f).expect("r"))
        .expect("dump");
    for r in d.records() {
        println!("{} {:.6} {}", r.seq, r.ts_ns as f64 / 1e9, r.text);
    }
    println!("{:?}", d.clocks());
}
