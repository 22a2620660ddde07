//! `--verify media`: a file is renamed into place only if the target's storage returns the data that was sent.
//!
//! The target is on a separate disk. Flushes are slowed down there, and meanwhile a bit is flipped on the disk. The
//! page cache still holds the correct data, so the damage shows only in a read past the page cache.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};
use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::support::command::{Outcome, ZMOVE};
use crate::support::harness::{PATIENCE, Site, skip, write_program};
use crate::support::namespace::Image;
use crate::support::tree::{assert_same, paint};
use crate::targets::faults::can_inject;

/// A file system on a disk on which a bit is flipped.
const EXT4: Image = Image {
    bytes: 96 << 20,
    make: "mkfs.ext4 -q -F -b 4096",
    options: "loop",
};

/// Block size of the file system. Each file begins at a block.
const BLOCK_BYTES: u64 = 4096;
/// Length of the longest mark.
const MARK_BYTES: usize = 64;

const SMALL: &[u8] = b"the whole contents of a small file, which are found nowhere else";
const MARK: &[u8] = b"a mark in a large file that is found nowhere else on the disk";

/// A site whose target is on a separate disk, and whose programs flush slowly. Returns `None` if this host cannot
/// provide it.
fn slow_site() -> Option<Site> {
    let mut site = fast_site()?;
    flush_slowly(&mut site);
    Some(site)
}

/// A site whose target is on a separate disk, and on which [`flush_slowly`] is possible.
fn fast_site() -> Option<Site> {
    if !can_inject() {
        skip("strace cannot run here: nothing makes a flush slow");
        return None;
    }
    let site = Site::within_image(&EXT4)?;
    std::fs::remove_dir(site.target().join("lost+found")).unwrap();
    Some(site)
}

/// Makes each flush of the site's programs last 3 s longer.
fn flush_slowly(site: &mut Site) {
    let program = site.path("slow");
    // With `-D`, the traced program keeps its process id.
    let script = format!(
        "#!/bin/sh\nexec strace -D -f --seccomp-bpf -qq -o /dev/null \
         -e trace=syncfs,fsync,fdatasync -e inject=syncfs,fsync,fdatasync:delay_exit=3000000 {ZMOVE} \"$@\"\n"
    );
    write_program(&program, &script);
    site.run_by(program);
}

fn flush_fast(site: &mut Site) {
    site.run_by(ZMOVE.into());
}

fn put_mark(path: &Path, offset: u64, mark: &[u8]) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(mark, offset).unwrap();
}

/// Creates a tree with a small and a large file that will be damaged, and with files that will not.
fn grow(source: &Path) {
    std::fs::create_dir(source.join("d")).unwrap();
    std::fs::write(source.join("d/small"), SMALL).unwrap();
    for number in 0..20 {
        paint(source.join(format!("d/other{number}")), 100 + number);
    }
    paint(source.join("large"), 3 * GROUP_BYTES + 5);
    put_mark(&source.join("large"), GROUP_BYTES + 8192, MARK);
    paint(source.join("whole"), 2 * GROUP_BYTES + 5);
}

/// Returns the first bytes and the offset of each allocated block of the disk. A flush lasts 3 s, so this must not read
/// the whole disk.
fn starts_of_blocks(disk: &std::fs::File) -> Vec<(u64, [u8; MARK_BYTES])> {
    let mut starts = Vec::new();
    let mut at = 0;
    while let Ok(data) = seek(disk, SeekFrom::Data(at)) {
        let end = seek(disk, SeekFrom::Hole(data)).unwrap();
        at = data - data % BLOCK_BYTES;
        while at < end {
            let mut start = [0; MARK_BYTES];
            disk.read_exact_at(&mut start, at).unwrap();
            starts.push((at, start));
            at += BLOCK_BYTES;
        }
    }
    starts
}

/// Flips a bit of each mark as soon as the mark is on the disk, below the page cache.
fn strike(site: &Site, marks: &[&'static [u8]]) -> JoinHandle<()> {
    let (path, mut marks) = (site.namespace().image(), marks.to_vec());
    std::thread::spawn(move || {
        let disk = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let since = Instant::now();
        while !marks.is_empty() && since.elapsed() < PATIENCE {
            let starts = starts_of_blocks(&disk);
            marks.retain(|mark| {
                let at = starts
                    .iter()
                    .rfind(|(_, start)| start.starts_with(mark))
                    .map(|(at, _)| *at);
                let strike = |at: u64| disk.write_all_at(&[mark[0] ^ 1], at).unwrap();
                at.map(strike).is_none()
            });
            // The search reads the whole disk, and a flush lasts much longer.
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(marks.is_empty(), "a mark never came to the disk");
    })
}

const WHY: &str = "the storage returned different data than was written";

/// Asserts that both damaged files are reported and not renamed into place. Then the same command stores them.
#[track_caller]
fn assert_found(site: &mut Site, outcome: Outcome, again: impl FnOnce(&Site) -> Outcome) {
    let outcome = outcome
        .expect(23)
        .says(&["verify 'd/small'", WHY])
        .says(&["verify 'large'", WHY]);
    outcome.lines(2);
    let target = site.target();
    assert!(!target.join("d/small").exists() && !target.join("large").exists());
    assert!(target.join("d/other7").exists() && target.join("whole").exists());
    flush_fast(site);
    again(site).done();
    assert_same(&site.source(), &target);
}

fn push(site: &Site, options: &[&str]) -> Outcome {
    site.push(
        &[&["--verify", "media"], options].concat(),
        site.contents(),
        "",
    )
}

fn a_bit_that_flips_on_the_disk_is_found(site: &mut Site) {
    grow(&site.source());
    let striking = strike(site, &[SMALL, MARK]);
    let outcome = push(site, &[]);
    striking.join().unwrap();
    assert_found(site, outcome, |site| push(site, &[]));
}

#[test]
fn a_bit_that_flips_on_the_disk_is_found_by_a_push_within_this_host() {
    if let Some(mut site) = slow_site() {
        a_bit_that_flips_on_the_disk_is_found(&mut site);
    }
}

#[test]
fn a_bit_that_flips_on_the_disk_is_found_by_a_daemon() {
    if let Some(mut site) = slow_site() {
        site.start_daemon();
        a_bit_that_flips_on_the_disk_is_found(&mut site);
    }
}

#[test]
fn a_bit_that_flips_on_the_disk_is_found_by_a_pull() {
    let Some(mut site) = slow_site() else { return };
    site.let_read("source");
    site.start_daemon();
    grow(&site.source());
    let striking = strike(&site, &[SMALL, MARK]);
    let source = site
        .source()
        .join("")
        .into_os_string()
        .into_string()
        .unwrap();
    let pull = |site: &Site| site.pull(&["--verify", "media"], &[&source], "");
    let outcome = pull(&site);
    striking.join().unwrap();
    assert_found(&mut site, outcome, pull);
}

/// A script replaces ssh and starts the receiver on this host, so that strace can trace it.
#[test]
fn a_bit_that_flips_on_the_disk_is_found_by_a_receiver_that_ssh_has_started() {
    let Some(mut site) = slow_site() else { return };
    grow(&site.source());
    let ssh = site.path("ssh");
    let text = "#!/bin/sh\ncase \" $* \" in *' -G '*) echo hostname 127.0.0.1; exit;; esac\n\
                for command; do :; done\nexec $command\n";
    write_program(&ssh, text);
    let target = format!("any@127.0.0.1:{}", site.target().display());
    let push = |site: &Site| {
        let mut push = site.zmove(&["push", "--verify", "media", "--ssh-command"]);
        push.0
            .arg(&ssh)
            .args(["--remote-zmove", ZMOVE])
            .arg(site.contents())
            .arg(&target);
        push.outcome()
    };
    let striking = strike(&site, &[SMALL, MARK]);
    let outcome = push(&site);
    striking.join().unwrap();
    assert_found(&mut site, outcome, push);
}

#[test]
fn a_bit_is_found_in_groups_that_differ_and_in_holes_that_are_filled() {
    a_bit_is_found_in_changed_files(
        &["--delta", "always"],
        [
            b"contents that come by themselves and stand nowhere else",
            b"a difference in a large file that stands nowhere else",
            b"what comes into a hole and stands nowhere else",
        ],
    );
}

#[test]
fn a_bit_is_found_in_files_that_are_changed_in_place() {
    a_bit_is_found_in_changed_files(
        &["--inplace", "--durability=file"],
        [
            b"contents that take the place of others on the disk",
            b"a part of a large file that takes the place of another",
            b"what takes the place of a hole on the disk",
        ],
    );
}

/// Changes a small, a large and a sparse file at the source. Each push with these options has to find the damage of all
/// three at the target.
#[track_caller]
fn a_bit_is_found_in_changed_files(options: &[&str], marks: [&'static [u8]; 3]) {
    let Some(mut site) = fast_site() else { return };
    let source = site.source();
    let target = site.target();
    grow(&source);
    let sparse = std::fs::File::create(source.join("sparse")).unwrap();
    sparse.set_len(4 * GROUP_BYTES).unwrap();
    sparse.write_all_at(b"data", 2 * GROUP_BYTES).unwrap();
    // With a flush for each file, only the damaged files should take seconds.
    for number in 1..20 {
        std::fs::remove_file(source.join(format!("d/other{number}"))).unwrap();
    }
    push(&site, &["--durability", "file"]).done();
    assert_same(&source, &target);
    let [small, large, sparse] = marks;
    std::fs::write(source.join("d/small"), small).unwrap();
    // The search for marks reads only the first bytes of each block of the disk.
    put_mark(&source.join("large"), 2 * GROUP_BYTES + 8192, large);
    put_mark(&source.join("sparse"), 3 * GROUP_BYTES + 8192, sparse);
    flush_slowly(&mut site);
    let striking = strike(&site, &marks);
    // A push that takes several seconds would report its progress.
    let options = [options, &["--quiet"]].concat();
    push(&site, &options)
        .expect(23)
        .says(&["verify 'd/small'", WHY])
        .says(&["verify 'large'", WHY])
        .says(&["verify 'sparse'", WHY])
        .lines(3);
    striking.join().unwrap();
    flush_fast(&mut site);
    push(&site, &options).done();
    assert_same(&source, &target);
}

#[test]
fn reading_back_is_refused_where_nothing_is_flushed() {
    let site = Site::local();
    push(&site, &["--durability", "none"])
        .expect(1)
        .says(&["--verify media reads back"]);
}

/// The output states the proof for each file.
#[test]
fn the_output_states_the_proof_of_each_file() {
    let site = Site::daemon();
    grow(&site.source());
    let outcome = push(&site, &[]).done();
    assert!(
        outcome.stdout.contains("verified (wire, media)"),
        "{}",
        outcome.stdout
    );
    std::fs::write(site.source().join("more"), "more").unwrap();
    let summary: Value = push(&site, &["--json"]).done().summary();
    assert_eq!(summary["verified"], serde_json::json!(["wire", "media"]));
    std::fs::write(site.source().join("more2"), "more").unwrap();
    let summary = site.push_contents();
    assert_eq!(summary["verified"], serde_json::json!(["wire"]));
    let proofs = site.path("proofs");
    std::fs::write(site.source().join("a\"\n"), "new").unwrap();
    std::fs::write(site.source().join("d/new"), "new").unwrap();
    push(&site, &["--checksum", "--proofs", proofs.to_str().unwrap()]).done();
    let text = std::fs::read_to_string(&proofs).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |path: &str| {
        lines
            .iter()
            .find(|line| line["path"] == path)
            .unwrap_or_else(|| panic!("{text}"))
    };
    let new = of("d/new");
    assert_eq!(new["blake3"], blake3::hash(b"new").to_hex().as_str());
    assert_eq!(
        (&new["by"], &new["host"]),
        (&"receiver".into(), &"127.0.0.1".into())
    );
    assert!(new["at"].as_u64() > Some(1_700_000_000));
    assert_eq!(new["proven"], serde_json::json!(["wire", "media"]));
    assert_eq!(of("d/small")["proven"], serde_json::json!(["compared"]));
}
