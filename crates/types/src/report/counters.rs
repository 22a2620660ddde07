//! The report counters of a transfer: one table from which all else about them is derived.
//!
//! Each row becomes a field of [`Counters`] and of [`AtomicCounters`]. The field's name is the name in JSON. The wire,
//! the summaries, the exit code and the tests of the JSON schema iterate over [`Counters::TABLE`].
//!
//! **Invariant:** an id travels and is recorded, so it never gets another meaning.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::report::event::Side;
use crate::units::ByteCount;

/// One counter: a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct CounterRow {
    /// The number that stands for the counter on the wire.
    pub id: u16,
    /// The name in JSON.
    pub name: &'static str,
    /// The meaning, as the JSON schema describes it.
    pub meaning: &'static str,
    /// The side that counts. The sender ignores what a receiver reports of other counters.
    pub side: Side,
    /// The result of two sessions of the same run, one after the other.
    pub merge: Merge,
    /// The effect of a value above 0 on the exit code.
    pub exit: ExitEffect,
    /// The transfers for which JSON has a number; it has null for others.
    pub scope: CounterScope,
    /// The text of the summary.
    pub phrase: Phrase,
    get: fn(&Counters) -> u64,
    get_mut: fn(&mut Counters) -> &mut u64,
}

/// The result of two sessions of the same run, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Each session adds its own part.
    Sum,
    /// The last session counts, because it has looked at everything again.
    Last,
    /// The higher value counts.
    Max,
}

/// The effect of a counter above 0 on the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitEffect {
    /// None.
    None,
    /// The transfer is partial.
    Partial,
    /// The limit of removals was reached.
    MaxDelete,
    /// Entries of the source may be missing at the target.
    InDoubt,
    /// A comparison found a difference.
    Difference,
}

/// The transfers that a counter is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterScope {
    /// All transfers.
    Any,
    /// Previews and verifications.
    Preview,
    /// Transfers with one session at a time.
    OneSession,
}

/// The text of a counter in the summary of a transfer: the words after the number. Words that end in a line break are a
/// line of their own, the others a part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phrase {
    /// Only JSON has the counter.
    JsonOnly,
    /// The summary has its own sentence for the counter.
    Own,
    /// The words after a number.
    Count {
        /// For 1.
        one: &'static str,
        /// For other numbers.
        many: &'static str,
    },
    /// The words after a number of bytes.
    Bytes(&'static str),
}

/// A counter that any thread adds to.
#[derive(Debug, Default)]
pub struct AtomicCounter(AtomicU64);

macro_rules! counters {
    ($($(#[doc = $meaning:literal])+
        $id:literal $name:ident, $side:ident, $merge:ident, $exit:ident, $scope:ident, $phrase:expr;)+) => {
        /// The values of all report counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $meaning])+ pub $name: u64,)+
        }

        /// The report counters of a session while it runs.
        #[derive(Debug, Default)]
        pub struct AtomicCounters {
            $($(#[doc = $meaning])+ pub $name: AtomicCounter,)+
        }

        impl Counters {
            /// All counters, in the order of the summary's text.
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
            /// The values at this moment.
            #[must_use]
            pub fn read(&self) -> Counters {
                Counters { $($name: self.$name.get(),)+ }
            }
        }
    };
}

counters! {
    /// Regular files that are whole and verified at the target because of the transfer; of a preview, those
    /// that would be sent.
    1 files, Sender, Sum, None, Any, Phrase::Own;
    /// Bytes of these files that were sent, without those of holes. Of a preview, the bytes of their data: the
    /// transfer sends less of large files of which the target has a part or another version.
    2 bytes, Sender, Sum, None, Any, Phrase::Own;
    /// Maximum number of lanes that were up at once.
    3 lanes, Sender, Max, None, OneSession, Phrase::Own;
    /// Entries that would be created.
    4 added, Sender, Last, Difference, Preview, Phrase::Own;
    /// Entries that would be changed or replaced.
    5 changed, Sender, Last, Difference, Preview, Phrase::Own;
    /// Files that were equal at the target already.
    6 skipped, Sender, Last, None, Any, same("equal at the target already");
    /// Files that are a hard link to another one and for which no data was sent.
    7 hard_links, Sender, Sum, None, Any, Phrase::Count {
        one: "of the files is a hard link to another",
        many: "of the files are hard links to others",
    };
    /// Entries only at the target that were removed, or would be; all below a directory count.
    8 removed, Sender, Sum, Difference, Any, same("removed");
    /// Entries only at the target that stay because the limit of removals was reached.
    9 max_delete_kept, Sender, Last, MaxDelete, Any, same("not removed (--max-delete)");
    /// Entries only at the target that stay because the source changed during the transfer.
    10 source_changed_kept, Sender, Last, Partial, Any, same("not removed (the source changed)");
    /// FIFOs, sockets and devices, which were not copied.
    11 specials, Sender, Last, None, Any, Phrase::Count {
        one: "special file not copied",
        many: "special files not copied",
    };
    /// Entries that the selection left out; a directory counts once, whatever it contains.
    12 left_out, Sender, Last, None, Any, same("left out by the selection");
    /// Items that arrived damaged and were sent again.
    13 resent, Sender, Sum, None, OneSession, same("resent after damage");
    /// Chunks that were sent again because their lane was slow.
    14 repeated, Sender, Sum, None, OneSession, Phrase::JsonOnly;
    /// Number of times that connections were lost and restored.
    15 reconnects, Sender, Sum, None, OneSession, same("× reconnected");
    /// Files and directories that failed.
    16 failed, Sender, Last, Partial, Any, same("FAILED");
    /// Failed entries that vanished while the source was scanned.
    17 vanished, Sender, Last, None, OneSession, Phrase::JsonOnly;
    /// Bytes of large files that an earlier transfer had brought and that were not sent again.
    18 bytes_resumed, Sender, Sum, None, Any, Phrase::Bytes("of large files had come before");
    /// Bytes of large files that another version at the target had as well, and that were not sent.
    19 bytes_matched, Sender, Sum, None, Any, Phrase::Bytes("of large files were the same at the target");
    /// Names that the manifest cannot contain.
    21 manifest_left_out, Sender, Last, None, Any, Phrase::Own;
    /// Files that were at the target and were not read, so that the manifest does not contain them.
    22 manifest_unread, Sender, Last, None, Any, Phrase::Own;
    /// Directories of other users at the target, whose mode and time only those users may set.
    23 foreign_directories, Receiver, Last, None, Any, Phrase::Count {
        one: "directory at the target belongs to another user: its mode and time stay as they are\n",
        many: "directories at the target belong to other users: their modes and times stay as they are\n",
    };
    /// Directories, and entries in them, that were removed because a file or link has their name.
    24 replaced_below, Receiver, Sum, None, Any, same("removed with directories that a file or link replaces");
    /// Directories of the source that changed each time they were read, so that entries in them may be missing.
    25 in_doubt, Sender, Last, InDoubt, OneSession, Phrase::Count {
        one: "directory in doubt (it changed each time it was read)",
        many: "directories in doubt (they changed each time they were read)",
    };
}

const fn same(words: &'static str) -> Phrase {
    Phrase::Count {
        one: words,
        many: words,
    }
}

impl Counters {
    /// All counters with their values.
    pub fn rows(&self) -> impl Iterator<Item = (&'static CounterRow, u64)> {
        Self::TABLE.iter().map(|row| (row, (row.get)(self)))
    }

    /// Sets the counter with this id, if there is one.
    pub fn set(&mut self, id: u16, value: u64) {
        if let Some(row) = Self::TABLE.iter().find(|row| row.id == id) {
            *(row.get_mut)(self) = value;
        }
    }

    /// These counters, with those that `side` counts taken from what it has reported.
    #[must_use]
    pub fn with(&self, side: Side, reported: &Self) -> Self {
        self.combine(
            reported,
            |row, own, reported| {
                if row.side == side { reported } else { own }
            },
        )
    }

    /// The result of two sessions of the same run: this one, and a later one.
    #[must_use]
    pub fn then(&self, later: &Self) -> Self {
        self.combine(later, |row, before, after| match row.merge {
            Merge::Sum => before.saturating_add(after),
            Merge::Last => after,
            Merge::Max => before.max(after),
        })
    }

    /// Whether any counter with this effect on the exit code is above 0.
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
    /// The text of this value; nothing of 0.
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
    /// Adds.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Subtracts what was added before.
    pub fn take_back(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    /// The value at this moment.
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

    /// Each counter with a value of its own.
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
        let words = ["1 special file not copied", "2 special files not copied"];
        assert_eq!(texts, [None, Some(words[0].into()), Some(words[1].into())]);
        assert_eq!(
            phrase("bytes_resumed").text(2048).unwrap(),
            "2.00 KiB of large files had come before"
        );
        let texts = ["repeated", "files"].map(|name| phrase(name).text(1));
        assert_eq!(texts, [None, None]);
    }
}
