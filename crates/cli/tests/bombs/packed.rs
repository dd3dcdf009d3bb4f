//! Small files that unpack to large ones, in every form that vmeter unpacks.

use std::io::Write;
use vmeter_base::bounds::Allowance;

/// What repeated parts are packed with. Each packs a part on its own: members, streams, frames
/// and blocks follow one another in all of them but `.lzma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Gz,
    Xz,
    Zst,
    Lzma,
    Bz2,
    Lz4,
}

/// The dictionary of xz's default, searched as its fastest preset does.
fn quick() -> liblzma::stream::LzmaOptions {
    let mut options = liblzma::stream::LzmaOptions::new_preset(0).expect("a preset");
    options.dict_size(8 << 20);
    options
}

impl Form {
    /// Of traces.
    pub const TRACES: [Form; 3] = [Form::Gz, Form::Xz, Form::Zst];

    fn part(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Form::Gz => {
                let mut out =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
                out.write_all(bytes).expect("packed");
                out.finish().expect("packed")
            }
            Form::Xz => {
                let mut filters = liblzma::stream::Filters::new();
                filters.lzma2(&quick());
                let check = liblzma::stream::Check::Crc64;
                let stream = liblzma::stream::Stream::new_stream_encoder(&filters, check);
                let mut out =
                    liblzma::write::XzEncoder::new_stream(Vec::new(), stream.expect("xz"));
                out.write_all(bytes).expect("packed");
                out.finish().expect("packed")
            }
            Form::Zst => zstd::bulk::compress(bytes, 3).expect("packed"),
            Form::Lzma => {
                let stream = liblzma::stream::Stream::new_lzma_encoder(&quick()).expect("lzma");
                let mut out = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
                out.write_all(bytes).expect("packed");
                out.finish().expect("packed")
            }
            Form::Bz2 => {
                let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
                out.write_all(bytes).expect("packed");
                out.finish().expect("packed")
            }
            Form::Lz4 => {
                let block = lz4_flex::block::compress(bytes);
                let mut out = (block.len() as u32).to_le_bytes().to_vec();
                out.extend(block);
                out
            }
        }
    }

    /// `head` and then `body` so many times that it unpacks to more than a file of its size
    /// may; none if `body` does not pack that well.
    pub fn bomb(self, head: &[u8], body: &[u8], limit: Allowance) -> Option<Vec<u8>> {
        let part = self.part(body);
        let gain = body.len().checked_sub(part.len() * limit.factor as usize)?;
        let times = (limit.floor as usize + (1 << 20)).div_ceil(gain) + 1;
        let mut out = self.part(head);
        (0..times).for_each(|_| out.extend(&part));
        Some(out)
    }

    /// One stream of `head` and `zeros` zeros, as a kernel's payload is.
    pub fn stream(self, head: &[u8], zeros: usize) -> Vec<u8> {
        if self == Form::Lz4 {
            const BLOCK: usize = 8 << 20;
            let mut first = head.to_vec();
            first.resize(BLOCK, 0);
            let mut out = vec![0x02, 0x21, 0x4c, 0x18];
            out.extend(self.part(&first));
            out.extend(self.part(&vec![0; BLOCK]).repeat(zeros / BLOCK));
            return out;
        }
        let mut all = head.to_vec();
        all.resize(head.len() + zeros, 0);
        self.part(&all)
    }
}
