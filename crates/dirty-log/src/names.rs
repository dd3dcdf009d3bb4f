// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The names that vm-memory's `AtomicBitmap` has for the same: a VMM that calls those changes
//! the type and nothing else.

use crate::slot::Slot;
use crate::strategy::{DirtyBitmap, Strategy};
use crate::summary::SummaryBitmap;
use std::ops::Range;

const KNOWN: &str = "it is the page size of a bitmap that there is";

/// What both bitmaps have.
macro_rules! names {
    ($bitmap:ty) => {
        impl $bitmap {
            /// Pages, as `AtomicBitmap` counts them: [`Self::pages`].
            pub fn len(&self) -> usize {
                self.pages()
            }

            /// It has no pages.
            pub fn is_empty(&self) -> bool {
                self.pages() == 0
            }

            /// [`Self::bytes`].
            pub fn byte_size(&self) -> usize {
                self.bytes()
            }

            /// [`Self::is_marked`].
            pub fn is_bit_set(&self, page: usize) -> bool {
                self.is_marked(page)
            }

            /// [`Self::is_marked_at`].
            pub fn is_addr_set(&self, offset: usize) -> bool {
                self.is_marked_at(offset)
            }

            /// [`Self::mark`].
            #[inline]
            pub fn set_bit(&self, page: usize) {
                self.mark(page);
            }

            /// [`Self::mark_bytes`].
            #[inline]
            pub fn set_addr_range(&self, start: usize, len: usize) {
                self.mark_bytes(start, len);
            }

            /// [`Self::clear_pages`] of one page.
            pub fn reset_bit(&self, page: usize) {
                self.clear_pages(page..page.saturating_add(1));
            }

            /// [`Self::clear_pages`] of those that have any of these bytes.
            pub fn reset_addr_range(&self, start: usize, len: usize) {
                self.clear_pages(self.pages_of(start, len));
            }

            /// The pages of `len` bytes from `start` on.
            pub fn pages_of(&self, start: usize, len: usize) -> Range<usize> {
                self.size().pages_of(start, len)
            }
        }
    };
}

names!(Slot);
names!(SummaryBitmap);

impl<S: Strategy> DirtyBitmap<S> {
    /// Harvests into a copy of all words, clean ones too. A [harvest](Self::harvest) that is
    /// only looked at copies nothing.
    ///
    /// # Panics
    /// This thread has a [`Harvest`](crate::Harvest) of this bitmap; as [`Self::harvest`].
    #[must_use = "what it returns is no longer marked; `reset` forgets it"]
    pub fn get_and_reset(&self) -> Vec<u64> {
        let mut words = vec![0; self.word_count()];
        self.harvest().for_each_word(|i, word| words[i] = word);
        words
    }

    /// Harvests and forgets.
    ///
    /// # Panics
    /// This thread has a [`Harvest`](crate::Harvest) of this bitmap; as [`Self::harvest`].
    pub fn reset(&self) {
        drop(self.harvest());
    }

    /// Makes it cover so many bytes more, in pages that are clean.
    pub fn enlarge(&mut self, additional_size: usize) {
        let bytes = self.bytes() + additional_size;
        let larger = Self::new(bytes, self.page_size()).expect(KNOWN);
        larger.mark_words(0, &self.snapshot());
        *self = larger;
    }
}

/// What is marked in it is marked in the copy.
impl<S: Strategy> Clone for DirtyBitmap<S> {
    fn clone(&self) -> Self {
        let copy = Self::new(self.bytes(), self.page_size()).expect(KNOWN);
        copy.mark_words(0, &self.snapshot());
        copy
    }
}

impl SummaryBitmap {
    /// Harvests into a copy of all words, clean ones too.
    #[must_use = "what it returns is no longer marked; `reset` forgets it"]
    pub fn get_and_reset(&self) -> Vec<u64> {
        let mut words = vec![0; self.word_count()];
        self.harvest(|i, word| words[i] = word);
        words
    }

    /// Harvests and forgets.
    pub fn reset(&self) {
        self.harvest(|_, _| {});
    }

    /// Makes it cover so many bytes more, in pages that are clean.
    pub fn enlarge(&mut self, additional_size: usize) {
        let bytes = self.bytes() + additional_size;
        let larger = Self::new(bytes, self.size().bytes());
        larger.mark_words(0, &self.snapshot());
        *self = larger;
    }
}

/// What is marked in it is marked in the copy.
impl Clone for SummaryBitmap {
    fn clone(&self) -> Self {
        let copy = Self::new(self.bytes(), self.size().bytes());
        copy.mark_words(0, &self.snapshot());
        copy
    }
}
