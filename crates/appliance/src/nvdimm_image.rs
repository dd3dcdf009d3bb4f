//! The head of an image that a guest has as an NVDIMM and reads by DAX.
//!
//! A mount with `dax` wants a `struct page` for each page of the device. For virtio-pmem Linux
//! makes them unasked (`ND_REGION_PAGEMAP`, drivers/nvdimm/virtio_pmem.c). For an NVDIMM, which
//! ACPI's NFIT describes, it does not, and ext4 says "DAX unsupported by block device"
//! (`QUEUE_FLAG_DAX` is set with `PFN_MAP` alone, drivers/nvdimm/pmem.c), unless the namespace
//! says so itself, by an info block as `ndctl create-namespace --mode=fsdax` writes it
//! (`struct nd_pfn_sb`, drivers/nvdimm/pfn.h; read by `nd_pfn_validate`).

/// Where the device's data begins; before it are the info block and nothing, bytes.
pub(crate) const DATA_OFFSET: u64 = 2 << 20;
/// Where the info block is, and its size, bytes.
const BLOCK: usize = 4096;
const PAGE: u64 = 4096;
/// The maps of pages are kept in the guest's RAM (`PFN_MODE_RAM`).
const MODE_RAM: u32 = 1;
/// A fixed identifier: the same image every time.
const UUID: [u8; 16] = *b"vmeter\0\x40\x80fsdax\0\0";

/// The head of an image whose data has so many bytes, a multiple of 2 MiB.
pub(crate) fn head(data_bytes: u64) -> Vec<u8> {
    let mut head = vec![0; DATA_OFFSET as usize];
    head[BLOCK..2 * BLOCK].copy_from_slice(&info_block(data_bytes));
    head
}

fn info_block(data_bytes: u64) -> [u8; BLOCK] {
    let mut block = [0u8; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"NVDIMM_PFN_INFO\0");
    put(16, &UUID);
    // At 32 is the parent's identifier, which a namespace without labels has not; at 48 flags.
    put(52, &1u16.to_le_bytes());
    put(54, &4u16.to_le_bytes());
    put(56, &DATA_OFFSET.to_le_bytes());
    put(64, &(data_bytes / PAGE).to_le_bytes());
    put(72, &MODE_RAM.to_le_bytes());
    // At 76 and 80 what is left out at both ends: nothing.
    put(84, &(2u32 << 20).to_le_bytes());
    put(88, &(PAGE as u32).to_le_bytes());
    put(92, &64u16.to_le_bytes());
    let sum = fletcher64(&block);
    block[BLOCK - 8..].copy_from_slice(&sum.to_le_bytes());
    block
}

/// The checksum of such blocks, over 32-bit words (`nd_fletcher64`, drivers/nvdimm/core.c).
fn fletcher64(bytes: &[u8]) -> u64 {
    let words =
        bytes.chunks_exact(4).map(|w| w.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)));
    let (low, high) = words.fold((0u32, 0u64), |(low, high), word| {
        let low = low.wrapping_add(word);
        (low, high.wrapping_add(low.into()))
    });
    high << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_what_the_kernel_looks_for() {
        let head = head(64 << 20);
        assert_eq!(head.len() as u64, DATA_OFFSET);
        let block = &head[4096..8192];
        assert_eq!(&block[..16], b"NVDIMM_PFN_INFO\0");
        assert_eq!(&block[64..72], &16384u64.to_le_bytes());
        // The sum is taken with the field for it empty.
        let mut without = block.to_vec();
        without[4088..].fill(0);
        assert_eq!(&block[4088..], &fletcher64(&without).to_le_bytes());
        assert_eq!(fletcher64(&[1, 0, 0, 0, 2, 0, 0, 0]), (1 + 3) << 32 | 3);
    }
}
