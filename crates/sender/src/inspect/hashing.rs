//! Hashes source files for a verification. Separate threads hash the stored contents of these files, while the receiver
//! hashes the files at the target.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use zmove_disk::{StorageReader, StoredFile, value_or_zeros};
use zmove_scan::Entry;
use zmove_types::{Cv, GroupSpan, Root};

use crate::account::failure::FileError;
use crate::push::config::SenderConfig;
use crate::push::session::Session;
use crate::push::threads::PushThreads;
use crate::read::source::{SourceDirectory, is_unchanged};

/// A source file to hash.
#[derive(Clone, Debug)]
pub(crate) struct HashedSource {
    pub(crate) directory: SourceDirectory,
    pub(crate) entry: Entry,
}

/// A job for a hashing thread.
pub(crate) enum HashJob {
    /// Files of at most one group, each with its index in the request. The number identifies the request to the
    /// receiver.
    Files(u64, Vec<(usize, HashedSource)>),
    /// Consecutive groups of one file. The number identifies the order, which is a request to hash a range of groups.
    Groups(u64, Box<HashedSource>, Range<u32>, HoleHashing),
}

/// How the hash of a group is reported if the group is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoleHashing {
    /// Reported as a hole, without a hash value.
    Marked,
    /// Reported with the hash value of its zeros.
    Hashed,
}

/// The result of a job.
pub(crate) enum HashResult {
    /// The roots of the files of the request with this number.
    Files(u64, Vec<(usize, Result<Root, FileError>)>),
    /// The values of the groups of the order with this number. The value of a hole is `None`.
    Groups(u64, OwnValues),
}

/// The values of the groups of an order, or the reason why the file cannot be read.
pub(super) type OwnValues = Result<Vec<Option<Cv>>, FileError>;

/// The hashing threads. They end when dropped.
pub(crate) struct Hashing {
    jobs: Sender<HashJob>,
    pub(crate) done: Receiver<HashResult>,
}

/// Maximum number of threads. Storage with a high latency benefits from several requests in parallel. The hashing
/// threads replace the readers of a push, and a daemon has reserved resources for that number of readers. There are
/// therefore never more hashing threads than there would be readers.
const THREADS: usize = 16;

impl Hashing {
    /// Starts the threads.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(
        session: &Arc<Session>,
        config: &SenderConfig,
        threads: &mut PushThreads,
    ) -> io::Result<Self> {
        let (jobs, waiting) = unbounded::<HashJob>();
        let (done_in, done) = unbounded();
        let storage = Arc::new(StorageReader::new(&config.file_io, config.buffers_max));
        for number in 0..THREADS.min(config.readers_max) {
            let reader = HashingReader {
                session: Arc::clone(session),
                storage: Arc::clone(&storage),
            };
            let waiting = waiting.clone();
            let done = done_in.clone();
            let work = move || {
                for job in waiting {
                    // Sending fails only if the session is being stopped.
                    let _stopping = done.send(reader.run(job));
                }
            };
            match threads.spawn(format!("zmove-hash-{number}"), work) {
                Err(error) if number == 0 => return Err(error),
                Err(_the_others_do_it) => break,
                Ok(()) => {}
            }
        }
        Ok(Self { jobs, done })
    }

    /// Queues a job. The number of queued jobs is bounded by the number of outstanding requests to the receiver.
    pub(crate) fn hash(&self, job: HashJob) {
        self.jobs
            .send(job)
            .expect("the threads end after this value");
    }
}

struct HashingReader {
    session: Arc<Session>,
    storage: Arc<StorageReader>,
}

impl HashingReader {
    fn run(&self, job: HashJob) -> HashResult {
        match job {
            HashJob::Files(request, files) => {
                let roots = files
                    .into_iter()
                    .map(|(place, source)| (place, self.root_of(&source)));
                HashResult::Files(request, roots.collect())
            }
            HashJob::Groups(order, source, groups, holes) => {
                HashResult::Groups(order, self.values_of(&source, groups, holes))
            }
        }
    }

    fn root_of(&self, source: &HashedSource) -> Result<Root, FileError> {
        self.unchanged(source, |file| {
            self.check_running()?;
            self.storage.root_of(file, file.bytes())
        })
    }

    fn values_of(
        &self,
        source: &HashedSource,
        groups: Range<u32>,
        holes: HoleHashing,
    ) -> Result<Vec<Option<Cv>>, FileError> {
        self.unchanged(source, |file| {
            let spans = groups.filter_map(|index| GroupSpan::of(file.bytes(), index));
            let value = |span| {
                self.check_running()?;
                let value = self.storage.value_of(file, span)?;
                Ok(match holes {
                    HoleHashing::Hashed => Some(value_or_zeros(span, value)),
                    HoleHashing::Marked => value,
                })
            };
            spans.map(value).collect()
        })
    }

    /// Returns an error once the session is being stopped.
    fn check_running(&self) -> io::Result<()> {
        if self.session.in_flight.is_stopping() {
            Err(io::ErrorKind::Interrupted.into())
        } else {
            Ok(())
        }
    }

    /// Checks that a file is unchanged since the scan, reads it, and checks again that it is unchanged.
    fn unchanged<T>(
        &self,
        HashedSource { directory, entry }: &HashedSource,
        read: impl FnOnce(&StoredFile) -> io::Result<T>,
    ) -> Result<T, FileError> {
        let (file, before) = directory.open_as_seen(entry)?;
        let unreadable = directory.unreadable(&entry.name);
        let file = StoredFile::new(file).map_err(&unreadable)?;
        let read = read(&file).map_err(unreadable)?;
        if is_unchanged(file.file(), &before) {
            Ok(read)
        } else {
            Err(directory.changed(&entry.name))
        }
    }
}
