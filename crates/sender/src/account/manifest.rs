//! The manifest: one line per file with its BLAKE3 root, in the format that `b3sum --check` reads in the target
//! directory. On request, a second file contains one line of JSON per file that states how, by whom and when the file
//! was proven, because b3sum's format has no room for this.
//!
//! A line is written when the receiver has confirmed the file, with the hash that was computed while the file was sent.
//! For a file that was already at the target with the source's size and time, the source is read to compute the hash.
//! Names that `b3sum` cannot read in any form are left out and counted.
//!
//! **Invariant:** an existing file with the manifest's name is replaced only by a complete manifest, and only if it is
//! a regular file. Apart from that, only new files and streams are opened. Lines are gathered in a hidden file with a
//! temporary name. A scan of a source skips that file, and the next manifest in the same directory removes it if this
//! process is killed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, statfs};
use serde::Serialize;
use zmove_disk::{Tree, make_hidden, remove_abandoned};
use zmove_types::{Name, RelPath, Root, unix_now};

/// A manifest that this process writes, or whose files are passed to a callback because another process writes it.
#[derive(Debug)]
pub struct Manifest(ManifestKind);

#[derive(Debug)]
enum ManifestKind {
    Written(Vec<ManifestLines>),
    Callback(ManifestCallback),
}

/// The callback that receives the files of a manifest that another process writes.
struct ManifestCallback(Box<ManifestFn>);

type ManifestFn = dyn FnMut(&RelPath, &Root, ProofMethod) + Send;

/// The format of the lines.
#[derive(Debug)]
enum LineForm {
    B3sum,
    Proofs(Prover),
}

/// The receiver that proves received files, and the methods by which it proves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prover {
    /// Host of the receiver, which proves the files.
    pub host: String,
    /// How a received file is proven.
    pub received: &'static [&'static str],
}

/// The way in which a file at the target was proven to match its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofMethod {
    /// The receiver has received and proven the file.
    Received,
    /// The file already existed, and its contents were compared.
    Compared,
    /// The file already existed with the source's size and time. The root is the root of the source.
    SizeAndTime,
}

impl fmt::Debug for ManifestCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Teller")
    }
}

impl Manifest {
    /// Begins to write a manifest to a hidden file next to `path`, which is renamed to `path` when the push succeeds. A
    /// symbolic link is followed, and the file that it leads to is replaced or created. The path may also be `-`, a
    /// FIFO, a character device or a descriptor such as `/dev/stdout`. The lines are then written there when the push
    /// succeeds.
    ///
    /// # Errors
    /// The system's error, or an error if `path` is of another type, such as a directory or a disk.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(ManifestKind::Written(vec![ManifestLines::create(
            path,
            LineForm::B3sum,
        )?])))
    }

    /// Begins to write lines that state how each file was proven. The destination is handled as in `create`.
    ///
    /// # Errors
    /// Returns the same errors as `create`.
    pub fn create_proofs(path: &Path, prover: Prover) -> io::Result<Self> {
        Ok(Self(ManifestKind::Written(vec![ManifestLines::create(
            path,
            LineForm::Proofs(prover),
        )?])))
    }

    /// Combines this manifest with another manifest. Each of the two is written to its own destination.
    ///
    /// # Panics
    /// Panics if either manifest was created by `with_callback`.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        match (self.0, other.0) {
            (ManifestKind::Written(mut lines), ManifestKind::Written(more)) => {
                lines.extend(more);
                Self(ManifestKind::Written(lines))
            }
            _ => panic!("a manifest that is told stands alone"),
        }
    }

    /// Creates a manifest that passes each file to `tell` instead of writing a line.
    pub fn with_callback(tell: impl FnMut(&RelPath, &Root, ProofMethod) + Send + 'static) -> Self {
        Self(ManifestKind::Callback(ManifestCallback(Box::new(tell))))
    }

    /// Adds a file. The first error is kept for [`finish`](Self::finish).
    pub fn add(&mut self, path: &RelPath, root: &Root, known: ProofMethod) {
        match &mut self.0 {
            ManifestKind::Written(lines) => lines
                .iter_mut()
                .for_each(|lines| lines.add(path, root, known)),
            ManifestKind::Callback(ManifestCallback(tell)) => tell(path, root, known),
        }
    }

    /// Returns whether an earlier session has listed this name. Always returns `false` if this process does not write
    /// the lines.
    pub(crate) fn has_earlier(&mut self, path: &RelPath) -> bool {
        match &mut self.0 {
            ManifestKind::Written(lines) => lines
                .first_mut()
                .is_some_and(|lines| lines.has_earlier(path)),
            ManifestKind::Callback(..) => false,
        }
    }

    /// Records that a session has ended and another follows. Files may be moved again, so the last line of each name
    /// counts. If a session finds a file that an earlier session has moved, the file keeps its line.
    pub fn begin_next_session(&mut self) {
        if let ManifestKind::Written(lines) = &mut self.0 {
            for lines in lines {
                lines.repeats = true;
                lines.earlier = None;
            }
        }
    }

    /// Completes the manifest and renames it into place. Returns the number of names that could not be written.
    ///
    /// # Errors
    /// The manifest could not be written.
    pub fn finish(self) -> io::Result<u64> {
        match self.0 {
            ManifestKind::Written(lines) => lines.into_iter().map(ManifestLines::finish).sum(),
            ManifestKind::Callback(..) => Ok(0),
        }
    }
}

/// The first 128 bits of the hash of a listed name.
type NameHash = [u8; 16];

fn hash_of(name: &[u8]) -> NameHash {
    let hash = blake3::hash(name);
    NameHash::try_from(&hash.as_bytes()[..size_of::<NameHash>()]).expect("a hash has 32 bytes")
}

/// The lines of a manifest that is written here.
#[derive(Debug)]
struct ManifestLines {
    form: LineForm,
    goal: ManifestOutput,
    out: BufWriter<File>,
    error: Option<io::Error>,
    unwritable_names: u64,
    /// Whether a name that is already in the manifest may be added again.
    repeats: bool,
    /// The names that earlier sessions have listed. They are read back from the manifest when a file is first found at
    /// the target.
    earlier: Option<HashSet<NameHash>>,
}

/// The destination of the manifest's lines after a successful push.
#[derive(Debug)]
enum ManifestOutput {
    /// The lines are gathered in the file `part`, which is renamed to `path`.
    Name { path: PathBuf, part: PathBuf },
    /// The lines are copied to a pipe, a terminal or another byte stream.
    Stream(File),
}

/// The type of file that a manifest's path refers to.
enum ManifestPlace {
    /// A regular file, or a path that does not exist yet.
    Name(PathBuf),
    Stream(File),
}

impl ManifestLines {
    /// Begins to write lines; see [`Manifest::create`].
    fn create(path: &Path, form: LineForm) -> io::Result<Self> {
        let (goal, out) = match ManifestPlace::of(path)? {
            ManifestPlace::Name(path) => {
                let directory = directory_of(&path);
                let tree = Tree::open(directory)?;
                let _best_effort = remove_abandoned(&tree, &RelPath::root(), tree.fd());
                let (part, out) = fresh_file(directory)?;
                if let Ok(there) = path.metadata() {
                    out.set_permissions(there.permissions())?;
                }
                (ManifestOutput::Name { path, part }, out)
            }
            ManifestPlace::Stream(stream) => {
                let (part, out) = fresh_file(&std::env::temp_dir())?;
                std::fs::remove_file(part)?;
                (ManifestOutput::Stream(stream), out)
            }
        };
        Ok(Self {
            form,
            goal,
            out: BufWriter::new(out),
            error: None,
            unwritable_names: 0,
            repeats: false,
            earlier: None,
        })
    }

    fn add(&mut self, path: &RelPath, root: &Root, known: ProofMethod) {
        if self.error.is_some() || known == ProofMethod::SizeAndTime && self.has_earlier(path) {
            return;
        }
        match self.form.write(&mut self.out, path, root, known) {
            Ok(true) => {}
            Ok(false) => self.unwritable_names += 1,
            Err(error) => self.error = Some(error),
        }
    }

    /// Returns whether an earlier session has listed this name.
    fn has_earlier(&mut self, path: &RelPath) -> bool {
        if !self.repeats {
            return false;
        }
        if self.earlier.is_none() {
            self.earlier = Some(self.names());
        }
        let mut line = Vec::new();
        let written = self
            .form
            .write(&mut line, path, &Root([0; 32]), ProofMethod::SizeAndTime);
        let name = hash_of(self.form.name_in(line.trim_ascii_end()));
        let is_listed = |names: &HashSet<_>| names.contains(&name);
        written.is_ok_and(|is_there| is_there) && self.earlier.as_ref().is_some_and(is_listed)
    }

    /// Reads back the names of the lines so far. Lines that cannot be read are ignored.
    fn names(&mut self) -> HashSet<NameHash> {
        if self.out.flush().is_err() {
            return HashSet::new();
        }
        let lines = BufReader::new(PositionedFile {
            file: self.out.get_ref(),
            offset: 0,
        })
        .split(b'\n');
        lines
            .map_while(Result::ok)
            .map(|line| hash_of(self.form.name_in(&line)))
            .collect()
    }

    /// Writes the buffered lines and completes the file. Returns the number of names that could not be written.
    fn finish(mut self) -> io::Result<u64> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        self.out.flush()?;
        let file = self.out.get_ref();
        if self.repeats {
            keep_last_lines(file, &self.form)?;
        }
        match &mut self.goal {
            ManifestOutput::Name { path, part } => {
                file.sync_all()?;
                if path.symlink_metadata().is_ok_and(|there| !there.is_file()) {
                    return Err(io::Error::other("it is no longer a regular file"));
                }
                std::fs::rename(part, &*path)?;
                // Without flushing the directory, a power failure could undo the rename.
                File::open(directory_of(path))?.sync_all()?;
            }
            ManifestOutput::Stream(stream) => {
                io::copy(&mut PositionedFile { file, offset: 0 }, stream)?;
            }
        }
        Ok(self.unwritable_names)
    }
}

impl Drop for ManifestLines {
    fn drop(&mut self) {
        if let ManifestOutput::Name { part, .. } = &self.goal {
            // After a successful push the file has been renamed and no longer exists under this name.
            let _renamed = std::fs::remove_file(part);
        }
    }
}

impl ManifestPlace {
    fn of(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stream(
                io::stdout().as_fd().try_clone_to_owned()?.into(),
            ));
        }
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            let name = path
                .file_name()
                .ok_or(io::ErrorKind::IsADirectory)?
                .to_owned();
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new(".")).canonicalize()?;
            path = parent.join(&name);
            if statfs(&parent).is_ok_and(|stat| stat.f_type == PROC_SUPER_MAGIC) {
                return descriptor(&path).map(Self::Stream);
            }
            match path.symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Self::Name(path));
                }
                Err(error) => return Err(error),
                Ok(there) if there.is_symlink() => path = parent.join(path.read_link()?),
                Ok(there) if there.is_file() => return Ok(Self::Name(path)),
                Ok(there) if is_stream(there.file_type()) => {
                    return Ok(Self::Stream(OpenOptions::new().write(true).open(path)?));
                }
                Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
                Ok(_) => return Err(io::Error::other("neither a regular file nor a stream")),
            }
        }
        Err(io::Error::from(rustix::io::Errno::LOOP))
    }
}

/// Maximum number of symbolic links to follow. The kernel has the same limit.
const LINKS_MAX: usize = 40;

fn is_stream(kind: FileType) -> bool {
    kind.is_fifo() || kind.is_char_device()
}

/// Opens a descriptor of a process by its path in `/proc`. A descriptor of this process's own output is duplicated, so
/// that output continues where the manifest ends.
fn descriptor(path: &Path) -> io::Result<File> {
    let own = path.parent()
        == Some(
            &Path::new("/proc")
                .join(std::process::id().to_string())
                .join("fd"),
        );
    let held = match path
        .file_name()
        .and_then(|name| name.to_str())
        .filter(|_| own)
    {
        Some("1") => io::stdout().as_fd().try_clone_to_owned()?,
        Some("2") => io::stderr().as_fd().try_clone_to_owned()?,
        _ => return OpenOptions::new().append(true).open(path),
    };
    Ok(held.into())
}

/// Returns the parent directory of a resolved path. A resolved path always has a parent.
fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Creates a file with a new hidden name.
fn fresh_file(directory: &Path) -> io::Result<(PathBuf, File)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let tree = Tree::open(directory)?;
    let make = |name: &Name| {
        rustix::fs::openat(
            tree.fd(),
            name.as_os_str(),
            flags,
            Mode::from_raw_mode(0o666),
        )
    };
    let (name, file) = make_hidden(tree.fd(), make)?;
    Ok((directory.join(name.as_os_str()), file.into()))
}

/// Returns whether b3sum can read a name. b3sum refuses names with the replacement character, because b3sum itself
/// writes that character for bytes that are not UTF-8. Some versions of b3sum strip a carriage return at the end of a
/// name, and other versions refuse an escaped carriage return.
fn is_readable(name: &str) -> bool {
    !name.contains('\u{fffd}') && !name.ends_with('\r')
}

/// Writes a line. If the name contains a backslash or a newline, b3sum's format begins the line with a backslash and
/// escapes both.
fn write_line(out: &mut impl Write, name: &str, root: &Root) -> io::Result<()> {
    if name.contains(['\\', '\n']) {
        let escaped = name.replace('\\', "\\\\").replace('\n', "\\n");
        return writeln!(out, "\\{root}  {escaped}");
    }
    writeln!(out, "{root}  {name}")
}

/// A line of JSON. A name that is not UTF-8 is written in the form in which it is displayed.
#[derive(Serialize)]
struct ProofLine<'a> {
    path: String,
    blake3: String,
    proven: &'a [&'a str],
    by: &'a str,
    host: &'a str,
    at: u64,
}

fn write_proof(
    out: &mut impl Write,
    path: &RelPath,
    root: &Root,
    Prover { host, received }: &Prover,
    known: ProofMethod,
) -> io::Result<()> {
    let line = ProofLine {
        path: path.to_string(),
        blake3: root.to_string(),
        proven: match known {
            ProofMethod::Received => received,
            ProofMethod::Compared => COMPARED,
            ProofMethod::SizeAndTime => SIZE_AND_TIME,
        },
        by: "receiver",
        host,
        at: unix_now().as_secs(),
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

/// The proof of a file that was found equal.
const COMPARED: &[&str] = &["compared"];
/// The proof of a file that was found with the source's size and time.
const SIZE_AND_TIME: &[&str] = &["size and time"];
/// The text that follows the path in a line of JSON. No path contains it, because quotes are escaped there.
const PATH_END: &str = "\",\"blake3\":\"";

impl LineForm {
    /// Writes the line of a file. Returns `false` without writing a line if b3sum cannot read the name in any form.
    fn write(
        &self,
        out: &mut impl Write,
        path: &RelPath,
        root: &Root,
        known: ProofMethod,
    ) -> io::Result<bool> {
        match self {
            Self::Proofs(prover) => write_proof(out, path, root, prover, known)?,
            Self::B3sum => match std::str::from_utf8(path.as_bytes()) {
                Ok(name) if is_readable(name) => write_line(out, name, root)?,
                _ => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Returns the part of a line that identifies its file.
    fn name_in<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        match self {
            Self::B3sum => line
                .splitn(2, |byte| *byte == b' ')
                .last()
                .unwrap_or_default(),
            Self::Proofs(_) => {
                let end = line
                    .windows(PATH_END.len())
                    .position(|part| part == PATH_END.as_bytes());
                &line[..end.unwrap_or(line.len())]
            }
        }
    }
}

/// Keeps only the last line of each name in the file. Names are distinguished by 128 bits of their hash.
fn keep_last_lines(file: &File, form: &LineForm) -> io::Result<()> {
    let lines = || {
        BufReader::new(PositionedFile { file, offset: 0 })
            .split(b'\n')
            .enumerate()
    };
    let name = |line: &[u8]| hash_of(form.name_in(line));
    let mut last = HashMap::new();
    for (number, line) in lines() {
        last.insert(name(&line?), number);
    }
    // The write position never passes the read position, so no line is overwritten before it is read.
    let mut out = BufWriter::new(PositionedFile { file, offset: 0 });
    for (number, line) in lines() {
        let line = line?;
        if last[&name(&line)] == number {
            out.write_all(&line)?;
            out.write_all(b"\n")?;
        }
    }
    let end = out
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .offset;
    file.set_len(end)
}

/// A file with a read and write position that is independent of other users of the file.
#[derive(Debug)]
struct PositionedFile<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for PositionedFile<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(room, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Write for PositionedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.offset)?;
        self.offset += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_again_stands_there_once() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("m");
        let mut manifest = Manifest::create(&path).unwrap();
        manifest.begin_next_session();
        for (name, byte) in [("a b", 1), ("c", 2), ("a b", 3), ("b", 4), ("a\nb", 5)] {
            manifest.add(
                &RelPath::from_bytes(name.as_bytes()).unwrap(),
                &Root([byte; 32]),
                ProofMethod::Received,
            );
        }
        assert_eq!(manifest.finish().unwrap(), 0);
        let line = |byte: u8, name: &str| format!("{}  {name}\n", format!("{byte:02x}").repeat(32));
        let expected = [
            line(2, "c"),
            line(3, "a b"),
            line(4, "b"),
            format!("\\{}", line(5, "a\\nb")),
        ]
        .concat();
        assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
    }

    #[test]
    fn proofs_are_lines_of_json_and_stand_there_once() {
        let home = tempfile::tempdir().unwrap();
        let prover = Prover {
            host: "h\"1".to_owned(),
            received: &["wire", "media"],
        };
        let (b3sum, proofs) = (home.path().join("m"), home.path().join("p"));
        let manifest = Manifest::create(&b3sum).unwrap();
        let mut manifest = manifest.with(Manifest::create_proofs(&proofs, prover).unwrap());
        manifest.begin_next_session();
        let known = [
            ProofMethod::Received,
            ProofMethod::Received,
            ProofMethod::Compared,
        ];
        for (name, known) in [&b"a\",\"blake3\":\""[..], b"b\\", b"b\\"]
            .into_iter()
            .zip(known)
        {
            manifest.add(
                &RelPath::from_bytes(name).unwrap(),
                &Root([0xAB; 32]),
                known,
            );
        }
        assert_eq!(manifest.finish().unwrap(), 0);
        let text = std::fs::read_to_string(proofs).unwrap();
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.rsplit_once(",\"at\":").unwrap().0)
            .collect();
        let hex = "ab".repeat(32);
        let line = |path: &str, proven: &str| {
            format!(
                "{{\"path\":\"{path}\",\"blake3\":\"{hex}\",\"proven\":[{proven}],\"by\":\"receiver\",\"host\":\"h\\\"1\""
            )
        };
        assert_eq!(
            lines,
            [
                line(r#"a\",\"blake3\":\""#, "\"wire\",\"media\""),
                line(r"b\\\\", "\"compared\""),
            ]
        );
        assert_eq!(std::fs::read_to_string(b3sum).unwrap().lines().count(), 2);
    }

    /// A killed process leaves a file whose temporary name contains its process number. Here the number equals that of
    /// the current process, but the start time differs.
    #[test]
    fn what_a_killed_process_has_left_goes() {
        let home = tempfile::tempdir().unwrap();
        let manifest = Manifest::create(&home.path().join("m")).unwrap();
        let name = std::fs::read_dir(home.path())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .file_name();
        let mut parts: Vec<_> = name
            .to_str()
            .unwrap()
            .split('-')
            .map(str::to_owned)
            .collect();
        assert!(zmove_disk::is_temporary(
            Tree::open(home.path()).unwrap().fd(),
            name.as_encoded_bytes()
        ));
        let start = u64::from_str_radix(&parts[5], 16).unwrap();
        parts[5] = format!("{:x}", start ^ 1);
        std::fs::write(home.path().join(parts.join("-")), "left").unwrap();
        manifest.finish().unwrap();
        Manifest::create(&home.path().join("m"))
            .unwrap()
            .finish()
            .unwrap();
        let left: Vec<_> = std::fs::read_dir(home.path())
            .unwrap()
            .map(|at| at.unwrap().file_name())
            .collect();
        assert_eq!(left, ["m"]);
    }

    #[test]
    fn lines_are_as_b3sum_writes_them() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("m");
        let mut manifest = Manifest::create(&path).unwrap();
        let unreadable = [&b"caf\xe9"[..], "a\u{fffd}".as_bytes(), b"a\r", b"a\n\r"];
        for name in [&b"a/b c"[..], b"back\\slash\nline", b"\r."]
            .into_iter()
            .chain(unreadable)
        {
            manifest.add(
                &RelPath::from_bytes(name).unwrap(),
                &Root([0xAB; 32]),
                ProofMethod::Received,
            );
        }
        assert_eq!(manifest.finish().unwrap(), 4);
        let hex = "ab".repeat(32);
        let expected = format!("{hex}  a/b c\n\\{hex}  back\\\\slash\\nline\n{hex}  \r.\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
    }
}
