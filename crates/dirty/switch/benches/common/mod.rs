// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the benches compare: the strategies, beside the contenders of dirty-log's own benches.

#[path = "../../../../dirty-log/benches/common/mod.rs"]
mod bitmaps;

pub use bitmaps::*;
use vmeter_dirty_switch::{DirtyBitmap, GetOpt, GetOrg, SwitchOpt};

macro_rules! ours {
    ($strategy:ty, $name:literal) => {
        impl Contender for DirtyBitmap<$strategy> {
            const NAME: &'static str = $name;

            fn with_pages(pages: usize) -> Self {
                DirtyBitmap::new(pages * PAGE, PAGE).unwrap()
            }

            #[inline]
            fn set(&self, page: usize) {
                vmeter_dirty_switch::Slot::mark(self, page);
            }

            #[inline]
            fn take(&self) -> u64 {
                let mut sum = 0;
                DirtyBitmap::harvest(self).for_each_word(|i, w| sum = visit(sum, i, w));
                sum
            }
        }
    };
}

ours!(GetOrg, "get_org");
ours!(GetOpt, "get_opt");
ours!(SwitchOpt, "switch_opt");
