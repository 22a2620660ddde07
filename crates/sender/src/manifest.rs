//! The manifest: one line per file with its BLAKE3 root, as `b3sum --check` reads it in the target directory.
//!
//! A line is written when the receiver has confirmed the file, from the hash that was made while it was sent. Names that
//! are not UTF-8 cannot be written in b3sum's format; they are left out and counted.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use zmove_types::{RelPath, Root};

/// A manifest being written.
#[derive(Debug)]
pub struct Manifest {
    path: PathBuf,
    part: PathBuf,
    out: BufWriter<File>,
    error: Option<io::Error>,
    unwritable_names: u64,
    /// The same name may come again.
    repeats: bool,
}

impl Manifest {
    /// Begins to write beside `path` (with `.part` appended); the name itself is given at the good end of the push.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let (path, part) = (path.to_owned(), PathBuf::from(part));
        let out = BufWriter::new(File::create(&part)?);
        Ok(Self { path, part, out, error: None, unwritable_names: 0, repeats: false })
    }

    /// Adds a file. The first error is kept for [`finish`](Self::finish).
    pub(crate) fn add(&mut self, path: &RelPath, root: &Root) {
        let Ok(name) = std::str::from_utf8(path.as_bytes()) else {
            self.unwritable_names += 1;
            return;
        };
        if self.error.is_none() {
            self.error = write_line(&mut self.out, name, root).err();
        }
    }

    /// What is there already may be moved again: the last line of each name counts.
    pub(crate) fn may_repeat(&mut self) {
        self.repeats = true;
    }

    /// Writes what is buffered; returns how many names could not be written.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        self.out.flush()?;
        if self.repeats {
            self.out = keep_last_lines(&self.part)?;
            self.out.flush()?;
        }
        self.out.get_ref().sync_all()?;
        std::fs::rename(&self.part, &self.path)?;
        Ok(self.unwritable_names)
    }
}

impl Drop for Manifest {
    fn drop(&mut self) {
        // after a good end it has its name and is not there any more
        let _renamed = std::fs::remove_file(&self.part);
    }
}

/// b3sum marks a line whose name holds a backslash or newline with a leading backslash and escapes both.
fn write_line(out: &mut impl Write, name: &str, root: &Root) -> io::Result<()> {
    if name.contains(['\\', '\n']) {
        let escaped = name.replace('\\', "\\\\").replace('\n', "\\n");
        return writeln!(out, "\\{root}  {escaped}");
    }
    writeln!(out, "{root}  {name}")
}

/// Writes the file anew with the last line of each name; a name is told from others by 128 bits of its hash.
fn keep_last_lines(part: &Path) -> io::Result<BufWriter<File>> {
    let read = File::open(part)?;
    let lines = || BufReader::new(&read).split(b'\n').enumerate();
    let name = |line: &[u8]| {
        let hash = blake3::hash(line.splitn(2, |byte| *byte == b' ').last().unwrap_or_default());
        <[u8; 16]>::try_from(&hash.as_bytes()[..16]).expect("a hash has 32 bytes")
    };
    let mut last = HashMap::new();
    for (number, line) in lines() {
        last.insert(name(&line?), number);
    }
    (&read).rewind()?;
    // the old file goes when it has been read
    std::fs::remove_file(part)?;
    let mut out = BufWriter::new(File::create(part)?);
    for (number, line) in lines() {
        let line = line?;
        if last[&name(&line)] == number {
            out.write_all(&line)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_again_stands_there_once() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("m");
        let mut manifest = Manifest::create(&path).unwrap();
        manifest.may_repeat();
        for (name, byte) in [("a b", 1), ("c", 2), ("a b", 3), ("b", 4), ("a\nb", 5)] {
            manifest.add(&RelPath::from_bytes(name.as_bytes()).unwrap(), &Root([byte; 32]));
        }
        assert_eq!(manifest.finish().unwrap(), 0);
        let line = |byte: u8, name: &str| format!("{}  {name}\n", format!("{byte:02x}").repeat(32));
        let expected =
            [line(2, "c"), line(3, "a b"), line(4, "b"), format!("\\{}", line(5, "a\\nb"))].concat();
        assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
    }

    #[test]
    fn lines_are_as_b3sum_writes_them() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("m");
        let mut manifest = Manifest::create(&path).unwrap();
        for name in [&b"a/b c"[..], b"back\\slash\nline", b"caf\xe9"] {
            manifest.add(&RelPath::from_bytes(name).unwrap(), &Root([0xAB; 32]));
        }
        assert_eq!(manifest.finish().unwrap(), 1);
        let hex = "ab".repeat(32);
        let expected = format!("{hex}  a/b c\n\\{hex}  back\\\\slash\\nline\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
    }
}
