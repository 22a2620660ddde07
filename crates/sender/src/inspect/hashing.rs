//! The half of a verification at the source: files are hashed as their storage holds them, by threads of their own,
//! while the receiver hashes those at the target.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use zmove_chunk::{FileHasher, GroupHasher, sparse_file_root, sparse_group_cv};
use zmove_disk::{FileIo, StoredFile};
use zmove_scan::Entry;
use zmove_types::{BufferPool, Cv, GroupSpan, Root};

use crate::account::failure::FileError;
use crate::push::config::{BUFFER_BYTES, SenderConfig};
use crate::push::session::Session;
use crate::push::threads::Threads;
use crate::read::source::{SourceDirectory, is_unchanged};

/// A file of the source.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) directory: SourceDirectory,
    pub(crate) entry: Entry,
}

/// Something to hash.
pub(crate) enum Job {
    /// Files of one group or less, by their places in a request.
    Files(u64, Vec<(usize, Source)>),
    /// Consecutive groups of one file, for an order.
    Groups(u64, Box<Source>, Range<u32>, Holes),
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
    Groups(u64, Result<Vec<Option<Cv>>, FileError>),
}

/// The threads that hash, which end when this is dropped.
pub(crate) struct Hashing {
    jobs: Sender<Job>,
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
        threads: &mut Threads,
    ) -> io::Result<Self> {
        let ((jobs, waiting), (done_in, done)) = (unbounded(), unbounded());
        let buffers = BufferPool::new(BUFFER_BYTES, config.buffers_max);
        for number in 0..THREADS.min(config.readers_max) {
            let reader = Reader {
                session: Arc::clone(session),
                file_io: Arc::clone(&config.file_io),
                buffers: buffers.clone(),
            };
            let (waiting, done): (Receiver<Job>, _) = (waiting.clone(), done_in.clone());
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
    pub(crate) fn hash(&self, job: Job) {
        self.jobs
            .send(job)
            .expect("the threads end after this value");
    }
}

struct Reader {
    session: Arc<Session>,
    file_io: Arc<dyn FileIo>,
    buffers: BufferPool,
}

impl Reader {
    fn run(&self, job: Job) -> Done {
        match job {
            Job::Files(request, files) => {
                let roots = files
                    .into_iter()
                    .map(|(place, source)| (place, self.root_of(&source)));
                Done::Files(request, roots.collect())
            }
            Job::Groups(order, source, groups, holes) => {
                Done::Groups(order, self.values_of(&source, groups, holes))
            }
        }
    }

    fn root_of(&self, source: &Source) -> Result<Root, FileError> {
        self.unchanged(source, |file| {
            let Some(span) = GroupSpan::of(file.bytes(), 0) else {
                return Ok(FileHasher::default().finish());
            };
            let mut hasher = FileHasher::default();
            let has_data = self.show(file, span, &mut |slice| hasher.update(slice))?;
            let zeros = || sparse_file_root(span.len as usize, std::iter::empty(), &[]);
            Ok(if has_data { hasher.finish() } else { zeros() })
        })
    }

    fn values_of(
        &self,
        source: &Source,
        groups: Range<u32>,
        holes: Holes,
    ) -> Result<Vec<Option<Cv>>, FileError> {
        self.unchanged(source, |file| {
            let spans = groups.filter_map(|index| GroupSpan::of(file.bytes(), index));
            let value = |span| {
                let value = self.value_of(file, span)?;
                Ok(if holes == Holes::Hashed {
                    Some(value_of(span, value))
                } else {
                    value
                })
            };
            spans.map(value).collect()
        })
    }

    fn value_of(&self, file: &StoredFile, span: GroupSpan) -> io::Result<Option<Cv>> {
        let mut hasher = GroupHasher::new(span.index);
        let has_data = self.show(file, span, &mut |slice| hasher.update(slice))?;
        Ok(has_data.then(|| hasher.finish()))
    }

    fn show(
        &self,
        file: &StoredFile,
        span: GroupSpan,
        seen: &mut dyn FnMut(&[u8]),
    ) -> io::Result<bool> {
        if self.session.in_flight.is_stopping() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        file.show(
            (self.file_io.as_ref(), &self.buffers),
            (span.offset(), span.len as usize),
            seen,
        )
    }

    /// Reads a file that is what the scan has seen, and still is when it has been read.
    fn unchanged<T>(
        &self,
        Source { directory, entry }: &Source,
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

/// The value of a group; a hole and zeros are the same contents.
pub(crate) fn value_of(span: GroupSpan, value: Option<Cv>) -> Cv {
    value.unwrap_or_else(|| sparse_group_cv(span, std::iter::empty(), &[]))
}
