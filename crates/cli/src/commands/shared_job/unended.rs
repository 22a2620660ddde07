//! Jobs of several receivers that have begun and not ended: a push that is killed, or gives up, cannot end its own, so
//! the next one does whose target is the same, above it or below it.
//!
//! **Invariant:** the file of a job is locked as long as the push lives that leads it, also before it has its name.
//! Several pushes may end the same job at once: none passes over it because another does so.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use zmove_cluster::Receiver;
use zmove_types::{SharedJobId, from_hex};

use crate::display::terminal;

/// A job, by its file, which this process has locked: alone, where it leads the job.
#[derive(Debug)]
pub(crate) struct Unended {
    path: PathBuf,
    locked: File,
    note: Note,
    /// Whether no receiver has the job, of which an opening may still be on its way.
    is_absent: bool,
}

/// What is noted of a job.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The version of the format: [`VERSION`].
    version: u32,
    job: [u8; 16],
    epoch: u64,
    /// Host and port of each receiver.
    hosts: Vec<(String, u16)>,
    /// The path of the target there.
    path: Vec<u8>,
    /// The cluster at whose broker it has a queue: the address of that may change, or be another cluster's too.
    cluster: Option<String>,
}

impl Note {
    fn new((job, epoch): (SharedJobId, u64), receivers: &[Receiver]) -> Self {
        let hosts = receivers
            .iter()
            .map(|receiver| (receiver.remote.host.clone(), receiver.remote.port));
        let path = receivers
            .first()
            .map(|receiver| receiver.remote.path.clone())
            .unwrap_or_default();
        Self {
            version: VERSION,
            job: job.0,
            epoch,
            hosts: hosts.collect(),
            path,
            cluster: None,
        }
    }

    /// Whether one is at or below the other, or may be: nobody here knows where a relative path leads.
    fn is_near(&self, other: &Self) -> bool {
        let may_meet = self.is_absolute() != other.is_absolute() || self.meets(other);
        may_meet && self.has_receiver_of(other)
    }

    /// Whether one is at or below the other, by their paths.
    fn meets(&self, other: &Self) -> bool {
        self.is_at_or_above(other) || other.is_at_or_above(self)
    }

    fn is_at_or_above(&self, other: &Self) -> bool {
        self.is_absolute() == other.is_absolute()
            && other.plain_path().starts_with(self.plain_path())
    }

    fn is_absolute(&self) -> bool {
        self.path.starts_with(b"/")
    }

    fn has_receiver_of(&self, other: &Self) -> bool {
        self.hosts.iter().any(|host| other.hosts.contains(host))
    }

    /// The path without parts that lead nowhere else.
    fn plain_path(&self) -> PathBuf {
        let path = Path::new(OsStr::from_bytes(&self.path));
        path.components()
            .filter(|part| *part != Component::CurDir)
            .collect()
    }
}

impl Unended {
    /// Notes a job that is about to begin.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn note(
        home: &Path,
        job: (SharedJobId, u64),
        receivers: &[Receiver],
    ) -> Result<Self> {
        Self::write(&directory(home), Note::new(job, receivers), "")
    }

    /// Notes a job of which the queue is about to be made at the broker of this cluster, before it begins.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn note_queue(
        home: &Path,
        job: (SharedJobId, u64),
        receivers: &[Receiver],
        cluster: &str,
    ) -> Result<Self> {
        let note = Note {
            cluster: Some(cluster.to_owned()),
            ..Note::new(job, receivers)
        };
        Self::write(&directory(home), note, QUEUE_ALONE)
    }

    fn write(directory: &Path, note: Note, kind: &str) -> Result<Self> {
        let failed = || format!("note the job in {}", directory.display());
        fs::create_dir_all(directory).with_context(failed)?;
        let path = directory.join(format!("{}{kind}", SharedJobId(note.job)));
        // nobody is to find it before it is locked and whole
        let new = directory.join(format!("{}{NEW}", SharedJobId(note.job)));
        let mut file = make_locked(&new).with_context(failed)?;
        file.write_all(&serde_json::to_vec(&note)?)
            .with_context(failed)?;
        // the job may outlive a power cut of this host
        file.sync_all().with_context(failed)?;
        rename(&new, &path).with_context(failed)?;
        Ok(Self {
            path,
            locked: file,
            note,
            is_absent: false,
        })
    }

    /// Notes that the job is about to begin, of which there was the queue alone.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub(crate) fn begins(self) -> Result<Self> {
        self.renew()?;
        let path = self.path.with_extension("");
        rename(&self.path, &path).with_context(|| format!("rename {}", self.path.display()))?;
        Ok(Self { path, ..self })
    }

    /// Takes the note away of a job that has ended at its receivers, and the queue with it that it had in this cluster.
    /// One that it has in another stays noted.
    ///
    /// # Errors
    /// The file cannot be renamed or removed.
    pub(crate) fn ended(self, cluster: Option<&str>) -> Result<()> {
        let Self { path, note, .. } = &self;
        let is_of_another = note
            .cluster
            .as_deref()
            .is_some_and(|own| Some(own) != cluster);
        // another push may just have begun to end one that is absent
        if self.is_absent && !self.is_old() || is_of_another && self.is_queue_alone() {
            return Ok(());
        }
        let changed = if is_of_another {
            rename(path, &path.with_extension(&QUEUE_ALONE[1..]))
        } else {
            fs::remove_file(path)
        };
        match changed {
            // another push may have done it
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("forget the job in {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// The jobs that no push leads any more and that are at the same target, above it or below it, or may be.
    ///
    /// # Errors
    /// The files cannot be listed.
    pub(super) fn near(home: &Path, receivers: &[Receiver]) -> Result<Vec<Self>> {
        let wanted = Note::new((SharedJobId([0; 16]), 0), receivers);
        let mut found = Self::all(home)?;
        found.retain(|unended| unended.note.is_near(&wanted));
        Ok(found)
    }

    /// The jobs that no push leads any more.
    ///
    /// # Errors
    /// The files cannot be listed.
    pub(super) fn all(home: &Path) -> Result<Vec<Self>> {
        let directory = directory(home);
        let failed = || format!("list {}", directory.display());
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.with_context(failed)?.path();
            found.extend(Self::abandoned(path));
        }
        Ok(found)
    }

    /// A job whose push has ended. A file that is none of this kind, or has just gone, is passed over; what is left of
    /// a push that was killed while it wrote one goes, and so does a note that tells nothing.
    fn abandoned(path: PathBuf) -> Option<Self> {
        let file = File::open(&path).ok()?;
        let is_new = path.to_string_lossy().ends_with(NEW);
        let alone = FlockOperation::NonBlockingLockExclusive;
        flock(
            &file,
            if is_new {
                alone
            } else {
                FlockOperation::NonBlockingLockShared
            },
        )
        .ok()?;
        if is_new {
            // one that another has removed may have a successor by now
            if file.metadata().ok()?.nlink() > 0 {
                let _best_effort = fs::remove_file(&path);
            }
            return None;
        }
        // its push may have had it begin, and have ended, since it was listed
        let named = file.metadata().ok()?.ino();
        let is_named = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.ino() == named);
        let path = [path.with_extension(""), path].into_iter().find(is_named)?;
        let mut text = Vec::new();
        (&file).take(NOTE_BYTES_MAX).read_to_end(&mut text).ok()?;
        if let Some(found) = other_version(&text) {
            let path = path.display();
            terminal::warn(format_args!(
                "'{path}' has format version {found}, and this zmove reads {VERSION}: what a push has left is not ended"
            ));
            return None;
        }
        match serde_json::from_slice(&text) {
            Ok(note) => Some(Self {
                path,
                locked: file,
                note,
                is_absent: false,
            }),
            Err(why) => {
                if is_name_of_note(&path) && fs::remove_file(&path).is_ok() {
                    let path = path.display();
                    terminal::warn(format_args!(
                        "'{path}' is removed, which says no more what a push has left at which target: {why}"
                    ));
                }
                None
            }
        }
    }

    /// Whether there is nothing of it but its queue at a broker.
    pub(crate) fn is_queue_alone(&self) -> bool {
        self.path.extension().is_some()
    }

    /// Whether it is a job of this cluster, which has a queue at its broker.
    pub(crate) fn is_in(&self, cluster: &str) -> bool {
        self.note.cluster.as_deref() == Some(cluster)
    }

    /// Whether it has no other receivers than these, so that there is no such job where none of them has it.
    pub(super) fn has_no_others(&self, receivers: &[Receiver]) -> bool {
        let other = Note::new((self.job(), self.epoch()), receivers);
        self.note
            .hosts
            .iter()
            .all(|host| other.hosts.contains(host))
    }

    /// The job.
    pub(crate) fn job(&self) -> SharedJobId {
        SharedJobId(self.note.job)
    }

    /// Whether its target is at or below theirs or the other way round, by their paths.
    pub(super) fn meets(&self, receivers: &[Receiver]) -> bool {
        self.note
            .meets(&Note::new((self.job(), self.epoch()), receivers))
    }

    /// Whether its target is theirs.
    pub(super) fn is_at(&self, receivers: &[Receiver]) -> bool {
        self.note.plain_path() == Note::new((self.job(), self.epoch()), receivers).plain_path()
    }

    /// The same, which no receiver has.
    pub(super) fn absent(self) -> Self {
        Self {
            is_absent: true,
            ..self
        }
    }

    /// Whether no opening of it can be on its way any more.
    fn is_old(&self) -> bool {
        let noted = fs::metadata(&self.path).and_then(|note| note.modified());
        noted.is_ok_and(|noted| noted.elapsed().is_ok_and(|age| age >= UNDERWAY_MAX))
    }

    /// An opening of it is about to be said.
    ///
    /// # Errors
    /// The time of the file cannot be set.
    pub(super) fn renew(&self) -> Result<()> {
        let renewed = self.locked.set_modified(SystemTime::now());
        renewed.with_context(|| format!("set the time of {}", self.path.display()))
    }

    /// The file in which it is noted.
    pub(crate) fn file(&self) -> &Path {
        &self.path
    }

    /// The path of its target.
    pub(crate) fn path(&self) -> &[u8] {
        &self.note.path
    }

    /// The epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.note.epoch
    }
}

/// Gives a file this name, in the same directory, for good.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    File::open(to.parent().expect("a file is in a directory"))?.sync_all()
}

/// The version of a note of another format.
fn other_version(text: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let Head { version } = serde_json::from_slice(text).ok()?;
    (version != VERSION).then_some(version)
}

/// Whether the name of a file is that of a note.
fn is_name_of_note(path: &Path) -> bool {
    let name = path.file_name().map_or(&[][..], |name| name.as_bytes());
    from_hex::<16>(name.strip_suffix(QUEUE_ALONE.as_bytes()).unwrap_or(name)).is_some()
}

/// Makes a file and locks it. Somebody who finds it before that takes it for one that was left, and removes it.
fn make_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

fn directory(home: &Path) -> PathBuf {
    home.join("shared-jobs")
}

/// How long what a killed process has said may be on its way: a kernel goes on sending it for two minutes on most
/// systems, and a quarter of an hour at most.
const UNDERWAY_MAX: Duration = Duration::from_secs(30 * 60);
/// What the name of a note ends with while there is nothing of the job but its queue at a broker.
const QUEUE_ALONE: &str = ".queue";
/// What the name of a note ends with that is being written.
const NEW: &str = ".new";
const NOTE_BYTES_MAX: u64 = 1 << 20;
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use zmove_engine::{DialSettings, Remote};

    fn receivers(hosts: &[&str], path: &str) -> Vec<Receiver> {
        let remote = |host: &&str| Remote {
            host: (*host).into(),
            port: 1,
            path: path.into(),
            login: None,
        };
        let receiver = |host| {
            let (home, remote, settings) = (PathBuf::new(), remote(host), DialSettings::default());
            Receiver {
                home,
                remote,
                settings,
            }
        };
        hosts.iter().map(receiver).collect()
    }

    #[test]
    fn a_job_is_found_when_its_push_has_ended_and_by_a_push_whose_target_it_may_have_entries_of() {
        let home = tempfile::tempdir().unwrap();
        let job = (SharedJobId([7; 16]), 3);
        let look =
            |hosts: &[&str], path| Unended::near(home.path(), &receivers(hosts, path)).unwrap();
        let found = |hosts: &[&str], path| {
            let found = look(hosts, path);
            found
                .iter()
                .map(|unended| (unended.job(), unended.epoch()))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&["a"], "t"), []);
        let leads = Unended::note(home.path(), job, &receivers(&["a", "b"], "t")).unwrap();
        assert_eq!(found(&["a", "b"], "t"), [], "it is led");
        drop(leads);
        assert!(
            look(&["a"], "t")
                .iter()
                .all(|unended| !unended.is_queue_alone() && !unended.is_old())
        );
        let path = directory(home.path()).join(job.0.to_string());
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - UNDERWAY_MAX).unwrap();
        let [old] = &look(&["a"], "t")[..] else {
            panic!("there is one")
        };
        assert!(old.is_old());
        old.renew().unwrap();
        assert!(!old.is_old());
        let [absent] = <[_; 1]>::try_from(look(&["a"], "t")).unwrap();
        absent.absent().ended(None).unwrap();
        assert!(path.exists(), "its opening may be on its way");
        let ending = look(&["a", "b"], "t");
        assert_eq!(found(&["b", "c"], "t"), [job], "also while another ends it");
        drop(ending);
        assert_eq!((found(&["c"], "t"), found(&["a"], "u")), (vec![], vec![]));
        let has_no_others =
            |hosts: &[&str]| look(hosts, "t")[0].has_no_others(&receivers(hosts, "t"));
        assert!(!has_no_others(&["a"]), "it may be at the other one");
        assert!(has_no_others(&["c", "b", "a"]));
        let is_at = |path| {
            look(&["a"], path)
                .iter()
                .any(|unended| unended.is_at(&receivers(&["a"], path)))
        };
        for same in ["t/", "./t", "t/."] {
            assert!(is_at(same), "{same}");
        }
        for may_meet in ["", ".", "t/u", "/data/./t/", "/t/u"] {
            assert!(
                found(&["a"], may_meet) == [job] && !is_at(may_meet),
                "{may_meet}"
            );
        }
        for other in ["u/t", "u", "tt"] {
            assert_eq!(found(&["a"], other), [], "{other}");
        }
        fs::write(directory(home.path()).join("other"), "{}").unwrap();
        look(&["a"], "t")
            .into_iter()
            .for_each(|unended| unended.ended(None).unwrap());
        assert_eq!(found(&["a"], "t"), []);
    }

    #[test]
    fn a_queue_is_noted_until_it_has_ended_in_its_own_cluster() {
        let home = tempfile::tempdir().unwrap();
        let at = receivers(&["a"], "t");
        let look = || Unended::near(home.path(), &at).unwrap();
        let found = || {
            look()
                .iter()
                .map(Unended::is_queue_alone)
                .collect::<Vec<_>>()
        };
        let note =
            || Unended::note_queue(home.path(), (SharedJobId([7; 16]), 3), &at, "one").unwrap();
        drop(note());
        assert_eq!(found(), [true]);
        let leads = note().begins().unwrap();
        assert!(found().is_empty(), "it is led");
        drop(leads);
        assert_eq!(found(), [false]);
        for cluster in [None, Some("other")] {
            let [left] = <[_; 1]>::try_from(look()).unwrap();
            assert!(left.is_in("one") && !left.is_in("other"));
            let another = look().pop().unwrap();
            left.ended(cluster).unwrap();
            another.ended(cluster).unwrap();
            assert_eq!(found(), [true], "{cluster:?}");
        }
        look().pop().unwrap().ended(Some("one")).unwrap();
        assert!(found().is_empty());
    }

    #[test]
    fn a_note_of_another_version_stays_and_is_not_ended() {
        let home = tempfile::tempdir().unwrap();
        let job = (SharedJobId([7; 16]), 3);
        let path = {
            let leads = Unended::note(home.path(), job, &receivers(&["a"], "t")).unwrap();
            leads.file().to_owned()
        };
        let text = fs::read_to_string(&path).unwrap();
        let other = text.replace("\"version\":1", "\"version\":2");
        fs::write(&path, &other).unwrap();
        assert!(Unended::all(home.path()).unwrap().is_empty());
        assert_eq!(fs::read_to_string(&path).unwrap(), other);
        fs::write(&path, text).unwrap();
        assert_eq!(Unended::all(home.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_note_that_tells_nothing_goes_when_nobody_has_it() {
        let home = tempfile::tempdir().unwrap();
        let at = receivers(&["a"], "t");
        let led = Unended::note(home.path(), (SharedJobId([1; 16]), 1), &at).unwrap();
        let id = SharedJobId([2; 16]);
        let names = [id.to_string(), format!("{id}{QUEUE_ALONE}"), "other".into()];
        let [empty, queue, other] = names.map(|name| directory(home.path()).join(name));
        let paths = [&led.path, &empty, &queue, &other];
        paths.iter().for_each(|path| fs::write(path, "").unwrap());
        assert!(Unended::near(home.path(), &at).unwrap().is_empty());
        assert_eq!(paths.map(|path| path.exists()), [true, false, false, true]);
    }

    #[test]
    fn what_is_left_of_notes_that_were_being_written_goes_and_nobody_loses_a_new_one() {
        let home = tempfile::tempdir().unwrap();
        let at = receivers(&["a"], "t");
        let sweep = || drop(Unended::near(home.path(), &at).unwrap());
        let first = Unended::note(home.path(), (SharedJobId([1; 16]), 1), &at).unwrap();
        let [left, written] =
            ["left.new", "written.new"].map(|name| directory(home.path()).join(name));
        fs::write(&left, "half").unwrap();
        let writing = make_locked(&written).unwrap();
        sweep();
        assert!(!left.exists() && written.exists());
        drop(writing);
        sweep();
        assert!(!written.exists());
        let are_all_made = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !are_all_made.load(Ordering::Relaxed) {
                        sweep();
                    }
                });
            }
            let make = |number| Unended::note(home.path(), (SharedJobId([number; 16]), 1), &at);
            let made: Result<Vec<_>> = (2..=u8::MAX).map(make).collect();
            are_all_made.store(true, Ordering::Relaxed);
            assert!(made.unwrap().iter().all(|unended| unended.path.exists()));
        });
        first.ended(None).unwrap();
    }

    /// Each of the two that sweep may have opened what the other removes, in whose place there is a new one.
    #[test]
    fn a_file_that_has_been_made_and_locked_stays() {
        let home = tempfile::tempdir().unwrap();
        let new = home.path().join(format!("job{NEW}"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        assert!(Unended::abandoned(new.clone()).is_none());
                    }
                });
            }
            let stays = |_| {
                let _made = make_locked(&new)?;
                fs::remove_file(&new)
            };
            let all: Result<(), _> = (0..5000).try_for_each(stays);
            is_over.store(true, Ordering::Relaxed);
            all.unwrap();
        });
    }
}
