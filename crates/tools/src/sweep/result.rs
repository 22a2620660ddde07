//! The results of a sweep, and their versioned JSON format for storage and for other programs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zmove_types::{ByteCount, SizeClass};
use zmove_wire::FileTotal;

use crate::figures::{class_key, day};
use crate::sweep::plan::Cell;

/// The version of the JSON format.
pub(crate) const FORMAT: u64 = 1;

/// The results of one sweep of one storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// The version of this format.
    pub(crate) format: u64,
    /// The version of the zmove that ran the sweep.
    pub(crate) zmove: String,
    /// When the sweep started, in seconds since the Unix epoch.
    pub(crate) unix_seconds: u64,
    /// The storage that was measured.
    pub(crate) storage: Storage,
    /// The host that ran the sweep.
    pub(crate) host: SweepHost,
    /// Number of threads that wrote and read.
    pub(crate) threads: usize,
    /// Maximum number of bytes to write.
    pub(crate) budget_bytes: u64,
    /// The time limit of the sweep, in seconds.
    pub(crate) time_seconds: f64,
    /// The duration of the sweep, in seconds.
    pub(crate) seconds: f64,
    /// Whether every planned size was measured, at least in part.
    pub(crate) complete: bool,
    /// The results by file size, smallest first.
    pub(crate) sizes: Vec<Measured>,
}

/// The identity of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Storage {
    /// The directory that the user named.
    pub(crate) path: String,
    /// The type of the file system, as shown by `mount`.
    pub(crate) kind: String,
    /// The source of the mount: a device, or a host and its export.
    pub(crate) source: String,
    /// The id of the file system (`f_fsid` of `statvfs`), in hexadecimal.
    pub(crate) id: String,
}

/// The host that ran the sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SweepHost {
    /// The host's name.
    pub(crate) name: String,
    /// The processor's name.
    pub(crate) cpu: String,
    /// Number of cores available to the process.
    pub(crate) cores: usize,
    /// The rate at which one core runs a fixed chain of integer operations. It is proportional to the clock frequency
    /// under load.
    pub(crate) core_operations_per_second: f64,
}

/// The results for files of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The size of each file, in bytes.
    pub(crate) file_bytes: u64,
    /// The size class: `losf`, `medium` or `large`.
    pub(crate) class: String,
    /// Number of files planned. Fewer are written if the time is too short.
    pub(crate) files_planned: u64,
    /// The result of writing the files, including the flush.
    pub(crate) write: Option<Throughput>,
    /// The result of reading the files. The files were read from storage unless [`Throughput::way`] is
    /// [`CacheUse::Cached`].
    pub(crate) read: Option<Throughput>,
}

/// The files and bytes that were moved, and the rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Throughput {
    /// Number of complete files.
    pub(crate) files: u64,
    /// Number of bytes, including those of incomplete files.
    pub(crate) bytes: u64,
    /// Duration, in seconds.
    pub(crate) seconds: f64,
    /// The rate in bytes per second.
    pub(crate) bytes_per_second: f64,
    /// The rate in files of this size per second.
    pub(crate) files_per_second: f64,
    /// Whether and how the data went through the page cache.
    pub(crate) way: CacheUse,
}

/// Whether and how data goes through the page cache on its way between memory and storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CacheUse {
    /// The data bypasses the page cache (`O_DIRECT`).
    Direct,
    /// The data goes through the page cache. Written files are flushed, and files are dropped from the cache before
    /// they are read.
    Buffered,
    /// The data was read from the page cache, because the files could not be dropped from it. The result says nothing
    /// about the storage, unless the storage is memory.
    Cached,
}

/// The direction of a data transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDirection {
    /// From storage.
    Read,
    /// To storage.
    Write,
}

/// The reason why a file does not contain a valid sweep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file has a different format version.
    #[error("its format is {found}, and this zmove reads {known}", known = FORMAT)]
    Format {
        /// The version in the file.
        found: u64,
    },
    /// The file is not the JSON of a sweep.
    #[error("it is not the result of a sweep: {0}")]
    Json(#[from] serde_json::Error),
    /// A value in the sweep is impossible.
    #[error("it contains an impossible value: {0}")]
    Impossible(&'static str),
}

impl Sweep {
    /// Parses the output of [`to_json`](Self::to_json).
    ///
    /// # Errors
    /// The text is not a valid sweep of this format version.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        struct Head {
            format: u64,
        }
        let Head { format } = serde_json::from_str(text)?;
        if format != FORMAT {
            return Err(ReadError::Format { found: format });
        }
        let sweep: Self = serde_json::from_str(text)?;
        sweep.check()?;
        Ok(sweep)
    }

    /// Returns the sweep as indented JSON.
    ///
    /// # Panics
    /// Never: the fields are plain values, which can always be serialized.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields") + "\n"
    }

    /// Returns the UTC date on which the sweep started.
    pub(crate) fn day(&self) -> String {
        day(self.unix_seconds)
    }

    /// Returns the results for the sizes of a class.
    pub(crate) fn of_class(&self, class: SizeClass) -> impl Iterator<Item = &Measured> {
        self.sizes
            .iter()
            .filter(move |size| SizeClass::of(size.file_bytes) == class)
    }

    /// Checks the figures by which other code divides.
    fn check(&self) -> Result<(), ReadError> {
        let moved = self
            .sizes
            .iter()
            .flat_map(|size| [size.write, size.read])
            .flatten();
        if moved
            .into_iter()
            .any(|moved| moved.seconds <= 0.0 || moved.bytes_per_second <= 0.0)
        {
            return Err(ReadError::Impossible("a rate that is not positive"));
        }
        if self.sizes.iter().any(|size| size.file_bytes == 0) {
            return Err(ReadError::Impossible("a size of 0"));
        }
        if self
            .sizes
            .windows(2)
            .any(|pair| pair[0].file_bytes >= pair[1].file_bytes)
        {
            return Err(ReadError::Impossible(
                "sizes that are not in ascending order",
            ));
        }
        Ok(())
    }
}

impl Measured {
    /// Creates the result for a size that has not been measured yet.
    pub(crate) fn nothing(cell: &Cell) -> Self {
        let class = class_key(SizeClass::of(cell.file_bytes)).to_owned();
        Self {
            file_bytes: cell.file_bytes,
            class,
            files_planned: cell.files,
            write: None,
            read: None,
        }
    }

    /// Returns the result in one direction.
    pub(crate) fn moved(&self, direction: IoDirection) -> Option<&Throughput> {
        match direction {
            IoDirection::Read => self.read.as_ref(),
            IoDirection::Write => self.write.as_ref(),
        }
    }
}

impl Throughput {
    /// Creates the result of moving files and bytes in a given time. Returns `None` if nothing was moved.
    pub(crate) fn new(
        file_bytes: u64,
        FileTotal { files, bytes }: FileTotal,
        time: Duration,
        way: CacheUse,
    ) -> Option<Self> {
        let seconds = time.as_secs_f64();
        if bytes == 0 || seconds <= 0.0 {
            return None;
        }
        let bytes_per_second = ByteCount(bytes).as_f64() / seconds;
        let files_per_second = bytes_per_second / ByteCount(file_bytes).as_f64();
        Some(Self {
            files,
            bytes,
            seconds,
            bytes_per_second,
            files_per_second,
            way,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a sweep with these sizes and read rates in bytes per second. Writing is half as fast.
    pub(crate) fn of(rates: &[(u64, f64)]) -> Sweep {
        let moved = |file_bytes: u64, rate: f64| {
            let files = 10;
            let bytes = files * file_bytes;
            let seconds = ByteCount(bytes).as_f64() / rate;
            Some(Throughput {
                files,
                bytes,
                seconds,
                bytes_per_second: rate,
                files_per_second: rate / ByteCount(file_bytes).as_f64(),
                way: CacheUse::Buffered,
            })
        };
        let size = |&(file_bytes, rate): &(u64, f64)| Measured {
            write: moved(file_bytes, rate / 2.0),
            read: moved(file_bytes, rate),
            ..Measured::nothing(&Cell {
                file_bytes,
                files: 10,
            })
        };
        Sweep {
            format: FORMAT,
            zmove: "0.1.0".into(),
            unix_seconds: 1_795_000_000,
            storage: Storage {
                path: "/data".into(),
                kind: "xfs".into(),
                source: "/dev/sdb1".into(),
                id: "fe10".into(),
            },
            host: SweepHost {
                name: "dtn".into(),
                cpu: "one".into(),
                cores: 2,
                core_operations_per_second: 1e9,
            },
            threads: 2,
            budget_bytes: 1 << 30,
            time_seconds: 120.0,
            seconds: 100.0,
            complete: true,
            sizes: rates.iter().map(size).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let sweep = of(&[(1024, 1e7), (1 << 20, 1e9)]);
        assert_eq!(Sweep::from_json(&sweep.to_json()).unwrap(), sweep);
    }

    #[test]
    fn another_version_and_what_cannot_be_are_refused() {
        let sweep = of(&[(1024, 1e7), (1 << 20, 1e9)]);
        let text = sweep
            .to_json()
            .replace("\"format\": 1", "\"format\": 2, \"more\": 0");
        assert!(matches!(
            Sweep::from_json(&text),
            Err(ReadError::Format { found: 2 })
        ));
        assert!(matches!(Sweep::from_json("{}"), Err(ReadError::Json(_))));
        for broken in [of(&[(1024, -1.0)]), of(&[(2048, 1.0), (1024, 1.0)])] {
            assert!(matches!(
                Sweep::from_json(&broken.to_json()),
                Err(ReadError::Impossible(_))
            ));
        }
    }
}
