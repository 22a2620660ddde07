//! The report counters of a transfer, defined by a single table.
//!
//! Each row becomes a field of [`Counters`] and of [`AtomicCounters`]. The field's name is also its name in JSON. The
//! wire format, the summaries, the exit code and the tests of the JSON schema iterate over [`Counters::TABLE`].
//!
//! **Invariant:** ids are sent over the wire and recorded, so an id is never reused for another meaning.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::report::event::Side;
use crate::units::ByteCount;

/// A row of the counter table.
#[derive(Clone, Copy, Debug)]
pub struct CounterRow {
    /// Number that identifies the counter on the wire.
    pub id: u16,
    /// Name in JSON.
    pub name: &'static str,
    /// Description, which the JSON schema repeats.
    pub meaning: &'static str,
    /// The side that maintains the counter. The sender ignores values that a receiver reports for the sender's
    /// counters.
    pub side: Side,
    /// How the values of two consecutive sessions of a run are merged.
    pub merge: Merge,
    /// Effect of a nonzero value on the exit code.
    pub exit: ExitEffect,
    /// The transfers for which the JSON output contains a number. For other transfers, it contains null.
    pub scope: CounterScope,
    /// Text in the summary.
    pub phrase: Phrase,
    get: fn(&Counters) -> u64,
    get_mut: fn(&mut Counters) -> &mut u64,
}

/// How the values of two consecutive sessions of a run are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The values are added, because each session counts its own part.
    Sum,
    /// The later value replaces the earlier one, because the last session examines everything again.
    Last,
    /// The higher value is used.
    Max,
}

/// The effect of a nonzero counter on the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitEffect {
    /// No effect.
    None,
    /// The transfer is partial.
    Partial,
    /// The removal limit was reached.
    MaxDelete,
    /// Entries of the source may be missing at the target.
    InDoubt,
    /// A comparison found a difference.
    Difference,
}

/// The transfers to which a counter applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterScope {
    /// All transfers.
    Any,
    /// Previews and verifications.
    Preview,
    /// Transfers that use one session at a time.
    OneSession,
}

/// The text that follows a counter's value in the summary. A text that ends with a line break gets its own line. Other
/// texts are joined into a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phrase {
    /// The counter appears only in JSON.
    JsonOnly,
    /// The summary has its own sentence for the counter.
    Own,
    /// Text after a plain number.
    Count {
        /// Text for the value 1.
        one: &'static str,
        /// Text for all other values.
        many: &'static str,
    },
    /// Text after a number of bytes.
    Bytes(&'static str),
}

/// A counter that many threads increment.
#[derive(Debug, Default)]
pub struct AtomicCounter(AtomicU64);

macro_rules! counters {
    ($($(#[doc = $meaning:literal])+
        $id:literal $name:ident, $side:ident, $merge:ident, $exit:ident, $scope:ident, $phrase:expr;)+) => {
        /// The values of all report counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $($(#[doc = $meaning])+ pub $name: u64,)+
        }

        /// The report counters of a running session.
        #[derive(Debug, Default)]
        pub struct AtomicCounters {
            $($(#[doc = $meaning])+ pub $name: AtomicCounter,)+
        }

        impl Counters {
            /// All counters, in the order of the summary.
            pub const TABLE: &[CounterRow] = &[$(CounterRow {
                id: $id,
                name: stringify!($name),
                meaning: concat!($($meaning),+).trim_ascii(),
                side: Side::$side,
                merge: Merge::$merge,
                exit: ExitEffect::$exit,
                scope: CounterScope::$scope,
                phrase: $phrase,
                get: |counters| counters.$name,
                get_mut: |counters| &mut counters.$name,
            },)+];
        }

        impl AtomicCounters {
            /// Returns the current values.
            #[must_use]
            pub fn read(&self) -> Counters {
                Counters { $($name: self.$name.get(),)+ }
            }
        }
    };
}

counters! {
    /// Regular files that the transfer completed and verified at the target. For a preview, the files that would be
    /// sent.
    1 files, Sender, Sum, None, Any, Phrase::Own;
    /// Bytes sent for the files that `files` counts, without holes. For a preview, all data bytes of the files. The
    /// transfer sends less if the target has a part or another version of a large file.
    2 bytes, Sender, Sum, None, Any, Phrase::Own;
    /// Maximum number of lanes that were connected at the same time.
    3 lanes, Sender, Max, None, OneSession, Phrase::Own;
    /// Entries that would be created.
    4 added, Sender, Last, Difference, Preview, Phrase::Own;
    /// Entries that would be changed or replaced.
    5 changed, Sender, Last, Difference, Preview, Phrase::Own;
    /// Files that were already equal at the target.
    6 skipped, Sender, Last, None, Any, same("already equal at the target");
    /// Files that are hard links to another file and for which no data was sent.
    7 hard_links, Sender, Sum, None, Any, Phrase::Count {
        one: "of the files is a hard link to another",
        many: "of the files are hard links to others",
    };
    /// Entries that existed only at the target and were removed, or would be removed. Each entry of a removed directory
    /// counts.
    8 removed, Sender, Sum, Difference, Any, same("removed");
    /// Entries that exist only at the target and were not removed because the limit of removals was reached.
    9 max_delete_kept, Sender, Last, MaxDelete, Any, Phrase::Count {
        one: "entry not removed (--max-delete): a higher limit removes it\n",
        many: "entries not removed (--max-delete): a higher limit removes them\n",
    };
    /// Entries that exist only at the target and were not removed because the source changed during the transfer.
    10 source_changed_kept, Sender, Last, Partial, Any, Phrase::Count {
        one: "entry not removed, because the source changed: run the same command again\n",
        many: "entries not removed, because the source changed: run the same command again\n",
    };
    /// FIFOs, sockets and devices that were not copied.
    11 specials, Sender, Last, None, Any, Phrase::Count {
        one: "special file not copied: -D copies it if the receiver permits\n",
        many: "special files not copied: -D copies them if the receiver permits\n",
    };
    /// Entries that the selection excludes. An excluded directory counts once, regardless of its contents.
    12 left_out, Sender, Last, None, Any, same("left out by the selection");
    /// Items that arrived damaged and were sent again.
    13 resent, Sender, Sum, None, OneSession, Phrase::Count {
        one: "item arrived damaged and was sent again: check memory and network cards of both hosts\n",
        many: "items arrived damaged and were sent again: check memory and network cards of both hosts\n",
    };
    /// Chunks that were sent again because their lane was slow.
    14 repeated, Sender, Sum, None, OneSession, Phrase::JsonOnly;
    /// Number of times that connections were lost and restored.
    15 reconnects, Sender, Sum, None, OneSession, Phrase::Count {
        one: "reconnection after a lost connection: 'zmove doctor HOST' examines the path\n",
        many: "reconnections after lost connections: 'zmove doctor HOST' examines the path\n",
    };
    /// Files and directories that failed.
    16 failed, Sender, Last, Partial, Any, Phrase::Count {
        one: "FAILED: its message states the cause; the same command tries it again\n",
        many: "FAILED: their messages state the causes; the same command tries them again\n",
    };
    /// Failed entries that vanished while the source was scanned.
    17 vanished, Sender, Last, None, OneSession, Phrase::JsonOnly;
    /// Bytes of large files that an earlier transfer delivered and that were not sent again.
    18 bytes_resumed, Sender, Sum, None, Any, Phrase::Bytes("of large files received earlier");
    /// Bytes of large files that another version at the target already contained and that were not sent.
    19 bytes_matched, Sender, Sum, None, Any, Phrase::Bytes("of large files already present at the target");
    /// Names that cannot be represented in the manifest.
    21 manifest_left_out, Sender, Last, None, Any, Phrase::Own;
    /// Files that were already at the target and were not read. The manifest does not contain them.
    22 manifest_unread, Sender, Last, None, Any, Phrase::Own;
    /// Directories at the target that belong to other users, so that their modes and times could not be set.
    23 foreign_directories, Receiver, Last, None, Any, Phrase::Count {
        one: "directory at the target belongs to another user: its mode and time stay as they are, because only its owner can set them\n",
        many: "directories at the target belong to other users: their modes and times stay as they are, because only their owners can set them\n",
    };
    /// Directories, and entries in them, that were removed because a file or link takes their name.
    24 replaced_below, Receiver, Sum, None, Any, same("removed with directories that a file or link replaces");
    /// Directories of the source that changed during each attempt to read them, so that entries may be missing.
    25 in_doubt, Sender, Last, InDoubt, OneSession, Phrase::Count {
        one: "directory may be incomplete, because it changed each time it was read: run the same command again\n",
        many: "directories may be incomplete, because they changed each time they were read: run the same command \
               again\n",
    };
}

const fn same(words: &'static str) -> Phrase {
    Phrase::Count {
        one: words,
        many: words,
    }
}

impl Counters {
    /// Returns all counters with their values.
    pub fn rows(&self) -> impl Iterator<Item = (&'static CounterRow, u64)> {
        Self::TABLE.iter().map(|row| (row, (row.get)(self)))
    }

    /// Sets the counter with this id. Unknown ids are ignored.
    pub fn set(&mut self, id: u16, value: u64) {
        if let Some(row) = Self::TABLE.iter().find(|row| row.id == id) {
            *(row.get_mut)(self) = value;
        }
    }

    /// Returns these counters, with the counters that `side` maintains replaced by the values in `reported`.
    #[must_use]
    pub fn with(&self, side: Side, reported: &Self) -> Self {
        self.combine(
            reported,
            |row, own, reported| {
                if row.side == side { reported } else { own }
            },
        )
    }

    /// Merges these counters with the counters of a later session of the same run.
    #[must_use]
    pub fn then(&self, later: &Self) -> Self {
        self.combine(later, |row, before, after| match row.merge {
            Merge::Sum => before.saturating_add(after),
            Merge::Last => after,
            Merge::Max => before.max(after),
        })
    }

    /// Returns the sums of two sets of counters for parts of the same work.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, |_row, own, other| own.saturating_add(other))
    }

    /// Returns whether any counter with this effect on the exit code is above 0.
    #[must_use]
    pub fn has(&self, effect: ExitEffect) -> bool {
        self.rows()
            .any(|(row, value)| row.exit == effect && value > 0)
    }

    fn combine(&self, other: &Self, value: impl Fn(&CounterRow, u64, u64) -> u64) -> Self {
        let mut combined = Self::default();
        for row in Self::TABLE {
            *(row.get_mut)(&mut combined) = value(row, (row.get)(self), (row.get)(other));
        }
        combined
    }
}

impl Phrase {
    /// Returns the text for a value, or `None` for 0 and for counters without a phrase.
    #[must_use]
    pub fn text(self, value: u64) -> Option<String> {
        match self {
            _ if value == 0 => None,
            Self::Count { one, .. } if value == 1 => Some(format!("1 {one}")),
            Self::Count { many, .. } => Some(format!("{value} {many}")),
            Self::Bytes(words) => Some(format!("{} {words}", ByteCount(value))),
            Self::JsonOnly | Self::Own => None,
        }
    }
}

impl AtomicCounter {
    /// Adds `more` to the value.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Subtracts an amount that was added before.
    pub fn take_back(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    /// Returns the current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl From<u64> for AtomicCounter {
    fn from(value: u64) -> Self {
        Self(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns counters that all have different values.
    fn distinct() -> Counters {
        let mut counters = Counters::default();
        for row in Counters::TABLE {
            counters.set(row.id, 100 + u64::from(row.id));
        }
        counters
    }

    #[test]
    fn each_row_has_its_own_id_name_and_field() {
        let ids: Vec<_> = Counters::TABLE.iter().map(|row| row.id).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
        for (row, value) in distinct().rows() {
            assert_eq!(value, 100 + u64::from(row.id), "{}", row.name);
            assert!(
                format!("{:?}", distinct()).contains(&format!(" {}: {value}", row.name)),
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn an_unknown_id_changes_nothing() {
        let mut counters = distinct();
        counters.set(u16::MAX, 1);
        assert_eq!(counters, distinct());
    }

    #[test]
    fn threads_count_what_is_read() {
        let counting = AtomicCounters::default();
        counting.files.add(5);
        counting.files.take_back(2);
        counting.failed.set(7);
        let expected = Counters {
            files: 3,
            failed: 7,
            ..Counters::default()
        };
        assert_eq!(counting.read(), expected);
    }

    #[test]
    fn each_counter_is_merged_as_its_row_says() {
        for (row, _) in distinct().rows() {
            let merged = |before, after| {
                let [before, after] = [before, after].map(|value| {
                    let mut counters = Counters::default();
                    counters.set(row.id, value);
                    counters
                });
                (row.get)(&before.then(&after))
            };
            let expected = match row.merge {
                Merge::Sum => [12, 12, u64::MAX],
                Merge::Last => [5, 7, 1],
                Merge::Max => [7, 7, u64::MAX],
            };
            let found = [merged(7, 5), merged(5, 7), merged(u64::MAX, 1)];
            assert_eq!(found, expected, "{}", row.name);
        }
    }

    #[test]
    fn a_side_reports_its_own_counters() {
        let reported = distinct();
        let counters = Counters::default().with(Side::Receiver, &reported);
        let expected = Counters {
            foreign_directories: reported.foreign_directories,
            replaced_below: reported.replaced_below,
            ..Counters::default()
        };
        assert_eq!(counters, expected);
        assert_eq!(reported.with(Side::Receiver, &reported), reported);
    }

    #[test]
    fn a_phrase_counts_and_says_nothing_of_zero() {
        let phrase = |name: &str| {
            let row = Counters::TABLE.iter().find(|row| row.name == name);
            row.unwrap().phrase
        };
        let specials = phrase("specials");
        let texts = [0, 1, 2].map(|value| specials.text(value));
        let words = [
            "1 special file not copied: -D copies it if the receiver permits\n",
            "2 special files not copied: -D copies them if the receiver permits\n",
        ];
        assert_eq!(texts, [None, Some(words[0].into()), Some(words[1].into())]);
        assert_eq!(
            phrase("bytes_resumed").text(2048).unwrap(),
            "2.00 KiB of large files received earlier"
        );
        let texts = ["repeated", "files"].map(|name| phrase(name).text(1));
        assert_eq!(texts, [None, None]);
    }
}
