//! The storage engine of io_uring: the parts of a group are in flight together, and the first are hashed, in
//! order, while the last are still being read.
//!
//! io_uring is tried when it is asked for, from the setup to a first read. Where that fails the program takes
//! [`Threads`](crate::Threads), and prints the reason in one line.

use std::sync::Arc;

use zmove_types::Buffer;
use zmove_uring::{Ring, RingConfig, Span, Unavailable};

use crate::file_io::{Engine, FileIo, Moved, Slices, Way};

/// Positional I/O by a ring's thread.
#[derive(Debug)]
pub struct Uring {
    ring: Ring,
    config: RingConfig,
}

impl Uring {
    /// Starts the ring.
    ///
    /// # Errors Why io_uring cannot be used here.
    pub fn start(config: RingConfig) -> Result<Self, Unavailable> {
        Ok(Self {
            ring: Ring::start(config)?,
            config,
        })
    }
}

impl Engine for Uring {
    fn read_some(
        &self,
        way: Way<'_>,
        span: Span,
        buffer: Buffer,
        seen: Slices<'_>,
    ) -> Moved<usize> {
        self.ring.read(way.file(), span, buffer, seen)
    }

    fn write_some(&self, way: Way<'_>, span: Span, buffer: Buffer) -> Moved<usize> {
        self.ring.write(way.file(), span, buffer)
    }

    /// Starts another ring: the slots of one are few, and storage that hangs keeps those that it has got.
    fn anew(&self) -> Option<Arc<dyn FileIo>> {
        Some(Arc::new(Self::start(self.config).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use zmove_types::BufferPool;

    use super::*;
    use crate::DataFile;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_read_of_nothing_ends_at_once() {
        let ring = match Uring::start(RingConfig::default()) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut buffer = BufferPool::new(4096, 1).take().unwrap();
        // A ring whose thread had taken up the request would mostly still be at it when the caller goes on.
        for _ in 0..10_000 {
            let (outcome, back) = ring
                .ring
                .read(&file, Span::new(0, 0..0), buffer, &mut |_| ());
            assert_eq!(outcome.unwrap(), 0);
            buffer = back;
        }
    }

    /// A pipe that nobody writes to stands for storage that does not answer.
    #[test]
    fn a_ring_whose_storage_hangs_holds_up_no_other() {
        let depth = 4;
        let one = match Uring::start(RingConfig {
            depth,
            ..RingConfig::default()
        }) {
            Ok(one) => one,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let other = FileIo::anew(&one).expect("there is room for two");
        let (hanging, mut end) = io::pipe().unwrap();
        let hanging = DataFile::new(File::from(OwnedFd::from(hanging)));
        let (home, (done_in, done)) = (tempfile::tempdir().unwrap(), std::sync::mpsc::channel());
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(home.path().join("f"))
            .unwrap();
        let file = DataFile::new(file);
        let pool = BufferPool::new(4096, usize::from(depth) + 1);
        std::thread::scope(|scope| {
            for _ in 0..depth {
                let (buffer, one, hanging) = (pool.take().unwrap(), &one, &hanging);
                scope.spawn(move || one.read(hanging, 0, 1, buffer, &mut |_| ()).0.unwrap());
            }
            let mut buffer = pool.take().unwrap();
            buffer.set_len(4096);
            scope.spawn(|| done_in.send(other.write(&file, 0, buffer).0).unwrap());
            let written = done.recv_timeout(PATIENCE);
            end.write_all(&vec![0; usize::from(depth)]).unwrap();
            written.expect("it does not wait for the other").unwrap();
        });
    }
}
