//! Writes the contents of a small file in one piece.
//!
//! A direct write (`O_DIRECT`) requires page-aligned data, so other data is copied first. Except for the smallest
//! files, that copy stays in the CPU cache and costs less than allocating, filling and writing back pages of the page
//! cache.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use zmove_types::{BufferPool, GROUP_BYTES, PAGE_BYTES};

use crate::storage::file_io::data_file::{Direct, can_write_directly};

/// Writes small files one after the other.
#[derive(Debug)]
pub struct ContentsWriter {
    direct: Direct,
    /// A pool with one buffer, for contents that are not page-aligned.
    aligned: BufferPool,
}

impl ContentsWriter {
    /// Creates a writer that uses direct I/O according to `direct`.
    #[must_use]
    pub fn new(direct: Direct) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "4 MiB fits any usize")]
        Self {
            direct,
            aligned: BufferPool::new(GROUP_BYTES as usize, 1),
        }
    }

    /// Writes the whole contents of a new, empty file.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn write(&self, mut file: &File, contents: &[u8]) -> io::Result<()> {
        let written = self.write_direct(file, contents)?;
        file.write_all(&contents[written..])
    }

    /// Returns whether the whole pages of a file of this size are expected to be written by direct I/O.
    #[must_use]
    pub fn is_direct(&self, file: &File, bytes: u64) -> bool {
        bytes >= PAGE_BYTES as u64 && can_write_directly(file, bytes, self.direct)
    }

    /// Writes whole pages by direct I/O and returns the number of bytes written. The caller must write the remaining
    /// bytes through the page cache: the end of the file, and data whose direct write failed. If the error persists,
    /// that second write returns it.
    fn write_direct(&self, file: &File, contents: &[u8]) -> io::Result<usize> {
        let body = &contents[..contents.len() - contents.len() % PAGE_BYTES];
        if body.is_empty() || !can_write_directly(file, contents.len() as u64, self.direct) {
            return Ok(0);
        }
        if body.as_ptr().addr().is_multiple_of(PAGE_BYTES) {
            return write_aligned(file, body);
        }
        let Some(mut buffer) = self
            .aligned
            .take()
            .filter(|buffer| body.len() <= buffer.capacity())
        else {
            return Ok(0);
        };
        let copy = &mut buffer.room()[..body.len()];
        copy.copy_from_slice(body);
        write_aligned(file, copy)
    }
}

/// Writes whole pages from page-aligned memory. Stops early if the file system refuses a write.
fn write_aligned(mut file: &File, body: &[u8]) -> io::Result<usize> {
    if fcntl_setfl(file, OFlags::DIRECT).is_err() {
        return Ok(0);
    }
    let written = write_pages(body, |rest| file.write(rest));
    fcntl_setfl(file, OFlags::empty())?;
    Ok(written)
}

/// Calls `write` for the remaining bytes of `body` while they start at a page boundary. Returns the number of bytes
/// written.
fn write_pages(body: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> usize {
    let mut written = 0;
    while written < body.len() && written.is_multiple_of(PAGE_BYTES) {
        match write(&body[written..]) {
            Ok(0) => break,
            Ok(bytes) => written += bytes,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INTR) => {}
            Err(_told_when_it_comes_again) => break,
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use zmove_types::Buffer;

    const SIZES: [usize; 8] = [0, 1, 4095, 4096, 4097, 131_072, 200_001, 4 << 20];

    fn written(writer: &ContentsWriter, contents: &[u8]) -> (File, Vec<u8>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let file = File::create_new(&path).unwrap();
        writer.write(&file, contents).unwrap();
        let mut there = Vec::new();
        File::open(path).unwrap().read_to_end(&mut there).unwrap();
        (file, there)
    }

    #[test]
    fn contents_arrive_whole_whichever_way_they_take() {
        let mut data = Buffer::copied(&vec![0; 5 << 20]);
        for (number, byte) in (0_u32..).zip(data.room()) {
            *byte = u8::try_from(number / 7 % 251).unwrap();
        }
        for direct in [Direct::Auto, Direct::On, Direct::Off] {
            let writer = ContentsWriter::new(direct);
            for (size, start) in SIZES
                .iter()
                .flat_map(|size| [(*size, 0), (*size, 1), (*size, 4096)])
            {
                let contents = &data[start..start + size];
                assert!(
                    written(&writer, contents).1 == contents,
                    "{size} bytes from {start}, {direct:?}"
                );
            }
        }
    }

    #[test]
    fn what_a_short_or_failed_write_leaves_goes_the_other_way() {
        let body: Vec<u8> = (0..3 * PAGE_BYTES)
            .map(|at| u8::try_from(at / PAGE_BYTES).unwrap())
            .collect();
        let error = |errno: Errno| Err(io::Error::from(errno));
        let cases = [
            (vec![Ok(PAGE_BYTES), Ok(2 * PAGE_BYTES)], 3 * PAGE_BYTES),
            (vec![error(Errno::INTR), Ok(3 * PAGE_BYTES)], 3 * PAGE_BYTES),
            (vec![Ok(PAGE_BYTES), error(Errno::NOSPC)], PAGE_BYTES),
            (vec![error(Errno::INVAL)], 0),
            (vec![Ok(PAGE_BYTES), Ok(512)], PAGE_BYTES + 512),
            (vec![Ok(0)], 0),
        ];
        for (answers, expected) in cases {
            let text = format!("{answers:?}");
            let (mut answers, mut taken) = (answers.into_iter(), Vec::new());
            let written = write_pages(&body, |rest| {
                let answer = answers.next().expect("no call after the last");
                taken.extend_from_slice(&rest[..*answer.as_ref().unwrap_or(&0)]);
                answer
            });
            assert_eq!(
                (written, taken.as_slice()),
                (expected, &body[..expected]),
                "{text}"
            );
        }
    }

    #[test]
    fn only_the_end_of_a_file_passes_through_the_page_cache() {
        let size = 131_072 + 5;
        let data = Buffer::copied(&vec![7; size + 1]);
        for (start, direct) in [(0, Direct::On), (1, Direct::On), (1, Direct::Off)] {
            let directory = tempfile::tempdir().unwrap();
            let file = File::create_new(directory.path().join("f")).unwrap();
            if !can_write_directly(&file, size as u64, Direct::On) {
                return eprintln!("skipped: no O_DIRECT in the directory for temporary files");
            }
            ContentsWriter::new(direct)
                .write(&file, &data[start..start + size])
                .unwrap();
            let Ok(cached) = zmove_uring::cached_bytes(&file, 0..size as u64) else {
                return eprintln!("skipped: this kernel does not tell what is in the page cache");
            };
            let expected = if direct == Direct::On { 5 } else { size as u64 };
            assert!(
                cached.abs_diff(expected) <= PAGE_BYTES as u64,
                "{cached} cached, {direct:?} from {start}"
            );
        }
    }
}
