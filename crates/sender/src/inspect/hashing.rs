//! The half of a verification at the source: files are hashed as their storage holds them, by threads of their own,
//! while the receiver hashes those at the target.

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

/// A file of the source.
#[derive(Clone, Debug)]
pub(crate) struct HashedSource {
    pub(crate) directory: SourceDirectory,
    pub(crate) entry: Entry,
}

/// Something to hash.
pub(crate) enum HashJob {
    /// Files of one group or less, by their places in a request.
    Files(u64, Vec<(usize, HashedSource)>),
    /// Consecutive groups of one file, for an order.
    Groups(u64, Box<HashedSource>, Range<u32>, Holes),
}

/// What the values of groups are to tell of one that is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holes {
    /// That it is one.
    Told,
    /// The value of its zeros.
    Hashed,
}

/// What has been hashed.
pub(crate) enum Done {
    /// The roots of the files of a request.
    Files(u64, Vec<(usize, Result<Root, FileError>)>),
    /// The values of the groups of an order; `None` for one that is a hole.
    Groups(u64, OwnValues),
}

/// The values of the groups of an order, or why the file cannot be read.
pub(super) type OwnValues = Result<Vec<Option<Cv>>, FileError>;

/// The threads that hash, which end when this is dropped.
pub(crate) struct Hashing {
    jobs: Sender<HashJob>,
    pub(crate) done: Receiver<Done>,
}

/// The most threads: storage that answers late is asked for several files at once. They take the place of a push's
/// readers, and there are no more of them than of those, which a daemon has booked.
const THREADS: usize = 16;

impl Hashing {
    /// Starts the threads.
    ///
    /// # Errors
    /// None can be started.
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
                    // The thread that asks has gone only when the session is being stopped.
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

    /// Queues a job; those that wait are bounded by the questions to the receiver that may be unanswered.
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
    fn run(&self, job: HashJob) -> Done {
        match job {
            HashJob::Files(request, files) => {
                let roots = files
                    .into_iter()
                    .map(|(place, source)| (place, self.root_of(&source)));
                Done::Files(request, roots.collect())
            }
            HashJob::Groups(order, source, groups, holes) => {
                Done::Groups(order, self.values_of(&source, groups, holes))
            }
        }
    }

    fn root_of(&self, source: &HashedSource) -> Result<Root, FileError> {
        self.unchanged(source, |file| {
            self.go_on()?;
            self.storage.root_of(file, file.bytes())
        })
    }

    fn values_of(
        &self,
        source: &HashedSource,
        groups: Range<u32>,
        holes: Holes,
    ) -> Result<Vec<Option<Cv>>, FileError> {
        self.unchanged(source, |file| {
            let spans = groups.filter_map(|index| GroupSpan::of(file.bytes(), index));
            let value = |span| {
                self.go_on()?;
                let value = self.storage.value_of(file, span)?;
                Ok(match holes {
                    Holes::Hashed => Some(value_or_zeros(span, value)),
                    Holes::Told => value,
                })
            };
            spans.map(value).collect()
        })
    }

    /// Fails once the session is being stopped.
    fn go_on(&self) -> io::Result<()> {
        if self.session.in_flight.is_stopping() {
            Err(io::ErrorKind::Interrupted.into())
        } else {
            Ok(())
        }
    }

    /// Reads a file that is what the scan has seen, and still is when it has been read.
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
