//! Saved sweeps: one file per host and storage, in a directory next to the directory of the keys.
//!
//! **Invariant:** saved sweeps are advice. A file that cannot be read or parsed is ignored.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::sweep::result::{Storage, Sweep, SweepHost};
use crate::sweep::storage::plain_name;

/// The directory of saved sweeps.
#[derive(Clone, Debug)]
pub struct SavedSweeps {
    /// The path of the directory, which may not exist yet.
    pub directory: PathBuf,
}

impl SavedSweeps {
    /// Saves a sweep, replacing an earlier one of the same storage. Removes the oldest sweeps if there are too many.
    ///
    /// # Errors
    /// The sweep cannot be written, or an old one cannot be removed.
    pub fn keep(&self, sweep: &Sweep) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        zmove_disk::replace_file(
            &self.file(&sweep.host.name, &sweep.storage),
            &sweep.to_json(),
        )?;
        self.forget_oldest()
    }

    /// Returns the saved sweep of the storage that contains all `paths`. If a path does not exist, its nearest existing
    /// ancestor is used. Returns `None` if the paths are on different storage, if the storage cannot be identified, or
    /// if no sweep of it is saved.
    pub fn of_paths<'p>(&self, paths: impl IntoIterator<Item = &'p Path>) -> Option<Sweep> {
        // Most users have never run a sweep. Do not examine the storage in that case.
        fs::read_dir(&self.directory).ok()?.next()?.ok()?;
        let mut storages = paths.into_iter().map(storage);
        let first = storages.next()??;
        storages
            .all(|other| other.is_some_and(|other| other.is_same(&first)))
            .then_some(())?;
        self.find(&first)
    }

    /// Returns the saved sweep of a storage by this host, if there is one.
    fn find(&self, storage: &Storage) -> Option<Sweep> {
        let host = SweepHost::own_name();
        let mut text = String::new();
        let file = fs::File::open(self.file(&host, storage)).ok()?;
        file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        let sweep = Sweep::from_json(&text).ok()?;
        (sweep.storage.is_same(storage) && sweep.host.name == host).then_some(sweep)
    }

    fn file(&self, host: &str, storage: &Storage) -> PathBuf {
        // If two storages produce the same file name, the later sweep replaces the earlier one. `find` compares the
        // full identity.
        let key = [host, &storage.kind, &storage.source, &storage.id].join("-");
        self.directory.join(plain_name(&key) + ".json")
    }

    fn forget_oldest(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                files.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        files.sort();
        let surplus = files.len().saturating_sub(KEPT_MAX);
        files[..surplus]
            .iter()
            .try_for_each(|(_, path)| fs::remove_file(path))
    }
}

fn storage(path: &Path) -> Option<Storage> {
    let absolute = std::path::absolute(path).ok()?;
    absolute
        .ancestors()
        .find_map(|ancestor| Storage::at(ancestor).ok())
}

const KEPT_MAX: usize = 64;
const BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::sweep::result::tests::of;

    fn sweep(source: &str) -> Sweep {
        let mut sweep = of(&[(1024, 1e6)]);
        sweep.host.name = SweepHost::own_name();
        sweep.storage.source = source.to_owned();
        sweep
    }

    #[test]
    fn what_is_kept_is_found_from_any_directory_of_the_storage() {
        let home = tempfile::tempdir().unwrap();
        let saved = SavedSweeps {
            directory: home.path().join("sweeps"),
        };
        let (one, other) = (sweep("/dev/one"), sweep("host:/two"));
        assert_eq!(saved.find(&one.storage), None);
        saved.keep(&one).unwrap();
        saved.keep(&other).unwrap();
        saved
            .keep(&Sweep {
                unix_seconds: 5,
                ..one.clone()
            })
            .unwrap();
        let elsewhere = Storage {
            path: "/data/below".into(),
            ..one.storage.clone()
        };
        assert_eq!(saved.find(&elsewhere).unwrap().unix_seconds, 5);
        assert_eq!(saved.find(&other.storage), Some(other.clone()));
        assert_eq!(
            saved.find(&Storage {
                kind: "ext4".into(),
                ..one.storage
            }),
            None
        );
        assert_eq!(fs::read_dir(home.path().join("sweeps")).unwrap().count(), 2);
    }

    #[test]
    fn what_another_host_has_measured_or_is_damaged_is_not_found() {
        let home = tempfile::tempdir().unwrap();
        let saved = SavedSweeps {
            directory: home.path().to_owned(),
        };
        let mut foreign = sweep("/dev/one");
        foreign.host.name.push('x');
        saved.keep(&foreign).unwrap();
        assert_eq!(saved.find(&foreign.storage), None);
        let own = sweep("/dev/one");
        saved.keep(&own).unwrap();
        fs::write(saved.file(&SweepHost::own_name(), &own.storage), "{").unwrap();
        assert_eq!(saved.find(&own.storage), None);
    }

    #[test]
    fn only_the_newest_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let saved = SavedSweeps {
            directory: home.path().to_owned(),
        };
        let sweeps: Vec<_> = (0..KEPT_MAX + 3)
            .map(|number| sweep(&format!("/dev/{number}")))
            .collect();
        // The last sweep is the newest when it is saved. Its file's time is then set to one second after the time of
        // the previous file.
        let begun = SystemTime::now() - Duration::from_secs(1000);
        for (sweep, seconds) in sweeps.iter().zip(0..) {
            saved.keep(sweep).unwrap();
            let file = saved.file(&sweep.host.name, &sweep.storage);
            let file = fs::File::options().write(true).open(file).unwrap();
            file.set_modified(begun + Duration::from_secs(seconds))
                .unwrap();
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), KEPT_MAX);
        for (number, sweep) in sweeps.iter().enumerate() {
            let is_kept = saved.find(&sweep.storage).is_some();
            assert_eq!(is_kept, number >= 3, "{number}");
        }
    }
}
