//! The compressions a kernel is packed with, told apart by magic number.
//!
//! Output is bounded by the file's [`Budget`]: an image is untrusted input, and a few
//! kilobytes can unpack to gigabytes. Magic numbers: the kernel's `lib/decompress.c`.

use crate::bytes::u32_at;
use crate::error::{Error, Result};
use std::io::Read;
use std::sync::Arc;
use vmeter_base::bounds::{Budget, Metered};

/// Most memory that a decoder's dictionary may take, bytes. The kernel's build takes 128 MiB
/// (`scripts/xz_wrap.sh` since 6.12); what of it is used is what was unpacked.
const MAX_DICTIONARY: u64 = 160 << 20;
/// The same as a power of two, for zstd: 128 MiB, as the kernel's build takes.
const MAX_WINDOW_LOG: u32 = 27;

/// Block size of the legacy LZ4 frame that `lz4 -l` writes, bytes.
const LZ4_LEGACY_BLOCK: usize = 8 << 20;

/// A compression format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// gzip.
    Gzip,
    /// xz, with the x86 branch filter.
    Xz,
    /// `.lzma`.
    Lzma,
    /// bzip2.
    Bzip2,
    /// LZ4, legacy frame.
    Lz4Legacy,
    /// Zstandard.
    Zstd,
    /// LZO, which is recognised but not unpacked.
    Lzo,
}

impl Format {
    /// The format that `data` begins with.
    pub fn detect(data: &[u8]) -> Option<Format> {
        const MAGICS: &[(&[u8], Format)] = &[
            (&[0x1f, 0x8b], Format::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Format::Xz),
            (&[0x5d, 0, 0], Format::Lzma),
            (b"BZh", Format::Bzip2),
            (&[0x02, 0x21, 0x4c, 0x18], Format::Lz4Legacy),
            (&[0x28, 0xb5, 0x2f, 0xfd], Format::Zstd),
            (&[0x89, b'L', b'Z', b'O'], Format::Lzo),
        ];
        MAGICS.iter().find(|(magic, _)| data.starts_with(magic)).map(|&(_, format)| format)
    }

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Format::Gzip => "gzip",
            Format::Xz => "xz",
            Format::Lzma => "lzma",
            Format::Bzip2 => "bzip2",
            Format::Lz4Legacy => "lz4",
            Format::Zstd => "zstd",
            Format::Lzo => "lzo",
        }
    }

    /// Unpacks `data`, within the budget of the file that it is in. What follows the
    /// compressed stream (the kernel's build appends the unpacked size) is ignored.
    ///
    /// # Errors
    /// [`Error::Payload`] when the stream is damaged, too large (as the budget then says), or
    /// LZO.
    pub fn decompress(self, data: &[u8], budget: &Arc<Budget>) -> Result<Vec<u8>> {
        use liblzma::stream::Stream;
        match self {
            Format::Gzip => self.read_bounded(flate2::read::GzDecoder::new(data), budget),
            Format::Xz => {
                let stream =
                    Stream::new_stream_decoder(MAX_DICTIONARY, 0).map_err(|e| self.error(e))?;
                self.read_bounded(liblzma::read::XzDecoder::new_stream(data, stream), budget)
            }
            Format::Lzma => {
                let stream = Stream::new_lzma_decoder(MAX_DICTIONARY).map_err(|e| self.error(e))?;
                self.read_bounded(liblzma::read::XzDecoder::new_stream(data, stream), budget)
            }
            Format::Bzip2 => self.read_bounded(bzip2::read::BzDecoder::new(data), budget),
            Format::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(data)
                    .map_err(|e| self.error(e))?
                    .single_frame();
                decoder.window_log_max(MAX_WINDOW_LOG).map_err(|e| self.error(e))?;
                self.read_bounded(decoder, budget)
            }
            Format::Lz4Legacy => lz4_legacy(data, budget),
            Format::Lzo => Err(self.error(
                "LZO is not supported; give the uncompressed vmlinux, or a kernel built with \
                 another CONFIG_KERNEL_* compression",
            )),
        }
    }

    fn error(self, reason: impl ToString) -> Error {
        Error::Payload { format: self.name(), reason: reason.to_string() }
    }

    fn read_bounded(self, reader: impl Read, budget: &Arc<Budget>) -> Result<Vec<u8>> {
        let mut output = Vec::new();
        let mut reader = Metered::new(reader, budget.clone());
        reader.read_to_end(&mut output).map_err(|e| self.error(e))?;
        Ok(output)
    }
}

/// The legacy LZ4 frame: a magic, then blocks of (u32 compressed length, data),
/// each of at most 8 MiB unpacked. It has no end mark; the kernel's build
/// appends a u32 with the unpacked size, too short to be a block.
fn lz4_legacy(data: &[u8], budget: &Budget) -> Result<Vec<u8>> {
    let format = Format::Lz4Legacy;
    let mut output = Vec::new();
    let mut at = 4;
    while data.len().saturating_sub(at) > 4 {
        let length = u32_at(data, at).unwrap_or(0) as usize;
        let block = at
            .checked_add(4)
            .and_then(|start| data.get(start..start.checked_add(length)?))
            .ok_or_else(|| {
                format.error(format!(
                    "a compressed block of {length} bytes at {at} exceeds the \
                    end of the data"
                ))
            })?;
        let start = output.len();
        output.resize(start + LZ4_LEGACY_BLOCK, 0);
        let unpacked = lz4_flex::block::decompress_into(block, &mut output[start..])
            .map_err(|e| format.error(e))?;
        output.truncate(start + unpacked);
        budget.unpack(unpacked as u64).map_err(|e| format.error(e))?;
        at += 4 + length;
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn budget(data: &[u8]) -> Arc<Budget> {
        Budget::new(vmeter_base::bounds::KERNEL, data.len() as u64)
    }

    fn sample() -> Vec<u8> {
        (0..100_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect()
    }

    fn packed(format: Format, data: &[u8]) -> Vec<u8> {
        let mut out = match format {
            Format::Gzip => {
                let mut e = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                e.write_all(data).unwrap();
                e.finish().unwrap()
            }
            Format::Xz => {
                let mut e = liblzma::write::XzEncoder::new(Vec::new(), 1);
                e.write_all(data).unwrap();
                e.finish().unwrap()
            }
            Format::Lzma => {
                let options = liblzma::stream::LzmaOptions::new_preset(1).unwrap();
                let stream = liblzma::stream::Stream::new_lzma_encoder(&options).unwrap();
                let mut e = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
                e.write_all(data).unwrap();
                e.finish().unwrap()
            }
            Format::Bzip2 => {
                let mut e = bzip2::write::BzEncoder::new(Vec::new(), Default::default());
                e.write_all(data).unwrap();
                e.finish().unwrap()
            }
            Format::Zstd => zstd::encode_all(data, 1).unwrap(),
            Format::Lz4Legacy => {
                let mut out = vec![0x02, 0x21, 0x4c, 0x18];
                for block in data.chunks(LZ4_LEGACY_BLOCK) {
                    let block = lz4_flex::block::compress(block);
                    out.extend((block.len() as u32).to_le_bytes());
                    out.extend(block);
                }
                out
            }
            Format::Lzo => vec![0x89, b'L', b'Z', b'O'],
        };
        if format != Format::Lzma {
            out.extend((data.len() as u32).to_le_bytes());
        }
        out
    }

    const FORMATS: [Format; 6] =
        [Format::Gzip, Format::Xz, Format::Lzma, Format::Bzip2, Format::Zstd, Format::Lz4Legacy];

    #[test]
    fn every_format_round_trips_with_the_size_appended() {
        let data = sample();
        for format in FORMATS {
            let packed = packed(format, &data);
            assert_eq!(Format::detect(&packed), Some(format));
            assert!(format.decompress(&packed, &budget(&packed)).unwrap() == data, "{format:?}");
        }
    }

    #[test]
    fn lzo_says_what_to_do() {
        let error = Format::Lzo.decompress(b"", &budget(b"")).unwrap_err().to_string();
        assert!(error.contains("vmlinux"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn garbage_never_panics(which in 0usize..6, cut in 0usize..4000, flip in 0usize..4000) {
            let mut packed = packed(FORMATS[which], &sample()[..4000]);
            let at = flip % packed.len();
            packed[at] ^= 0x55;
            packed.truncate(cut.max(4));
            let _ = FORMATS[which].decompress(&packed, &budget(&packed));
        }
    }
}
