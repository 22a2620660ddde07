//! Tests the store as a file: permissions, version, damage, locks and copies.

use super::*;

#[test]
fn a_store_is_for_its_user_alone() {
    let site = site();
    for name in ["jobs.db", "jobs.db-wal", "jobs.db-shm"] {
        let mode = site.place.path().join(name).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_store_of_another_version_is_refused_by_path_and_version() {
    let site = site();
    site.store
        .connection
        .pragma_update(None, "user_version", 2)
        .unwrap();
    let error = Store::open(&site.place).unwrap_err();
    let path = site.place.database();
    assert_eq!(
        error.to_string(),
        format!(
            "'{}' has schema version 2, and this zmove reads version 1: use the zmove that wrote it, or move it away",
            path.display()
        )
    );
}

#[test]
fn a_damaged_store_is_reported() {
    let site = site();
    let path = site.place.database();
    drop(site.store);
    std::fs::write(
        &path,
        b"this is no database, whatever it may have been before".repeat(100),
    )
    .unwrap();
    let error = Store::open(&site.place).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("restore a backup"), "{error}");
}

#[test]
fn a_page_that_was_overwritten_is_found_by_the_check() {
    let mut site = site();
    for number in 0..200 {
        site.submit(&job(&format!("job {number}")));
    }
    let path = site.place.database();
    drop(site.store);
    let mut bytes = std::fs::read(&path).unwrap();
    let half = bytes.len() / 2 / 4096 * 4096;
    bytes[half..half + 4096].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let checked = Store::open(&site.place).unwrap().check();
    assert!(
        matches!(checked, Err(StoreError::Damaged { .. })),
        "{checked:?}"
    );
}

#[test]
fn a_full_disk_changes_nothing_and_is_reported() {
    let mut site = site();
    let pages: i64 = site
        .store
        .connection
        .query_row("PRAGMA page_count", (), |row| row.get(0))
        .unwrap();
    site.store
        .connection
        .pragma_update(None, "max_page_count", pages)
        .unwrap();
    let large = NewJob {
        label: "x".repeat(100_000),
        ..job("x")
    };
    let error = site.store.submit(&large, START).unwrap_err();
    assert!(
        matches!(error, StoreError::Full { .. }) && error.is_passing(),
        "{error}"
    );
    assert_eq!(site.store.jobs(Moment::FIRST).unwrap(), []);
    site.store.check().unwrap();
}

#[test]
fn a_locked_store_is_reported() {
    let mut site = site();
    let other = Store::open(&site.place).unwrap();
    other.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    site.store
        .connection
        .busy_timeout(Duration::from_millis(20))
        .unwrap();
    let error = site.store.submit(&job("x"), START).unwrap_err();
    assert!(
        matches!(error, StoreError::Locked { .. }) && error.is_passing(),
        "{error}"
    );
}

#[test]
fn a_backup_is_a_store() {
    let mut site = site();
    let id = site.submit(&job("x"));
    let other = site.place.path().join("other");
    let file = JobsDirectory::open(&other).unwrap().database();
    site.store.back_up(&file).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    let copy = Store::open(&JobsDirectory::open(&other).unwrap()).unwrap();
    copy.check().unwrap();
    assert_eq!(copy.job(id).unwrap(), site.store.job(id).unwrap());
    let again = site.store.back_up(&file).unwrap_err();
    assert!(
        matches!(
            again,
            StoreError::Io {
                operation: "create",
                ..
            }
        ),
        "{again}"
    );
}

/// A submission and the runner that it starts open a new store at the same time.
#[test]
fn many_may_open_a_new_store_at_once() {
    for _ in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let place = JobsDirectory::open(directory.path()).unwrap();
        std::thread::scope(|scope| {
            let openings: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Store::open(&place).map(drop)))
                .collect();
            openings
                .into_iter()
                .for_each(|opening| opening.join().unwrap().unwrap());
        });
    }
}
