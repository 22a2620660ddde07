//! The stock `b3sum --check` accepts the manifest of a push in the target directory.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::command::Outcome;
use crate::support::harness::{PATIENCE, Site, both_ways, has_program, is_root, skip};
use crate::support::proxy::Proxy;
use crate::support::tree::{names, paint, paint_interesting_sizes, painted, set_mode, set_old};

both_ways!(
    b3sum_accepts_the_manifest,
    b3sum_finds_changed_files,
    names_with_backslash_and_newline_are_escaped,
    names_that_b3sum_cannot_read_are_left_out_and_counted,
    files_that_were_equal_are_listed,
    files_that_stay_as_they_were_are_left_out_and_counted,
    a_push_after_one_that_was_killed_lists_all,
    a_manifest_in_the_source_is_not_sent_before_it_is_complete,
);

/// An older manifest is sent like any other file.
fn a_manifest_in_the_source_is_not_sent_before_it_is_complete(site: &Site) {
    paint(site.source().join("d/f"), 10);
    let place = site.source().join("d/manifest");
    let options = ["--manifest", place.to_str().unwrap()];
    site.push(&options, site.contents(), "").done();
    assert_eq!(names(&site.source().join("d")), ["f", "manifest"]);
    assert_eq!(names(&site.target().join("d")), ["f"]);
    let first = std::fs::read(&place).unwrap();
    site.push(&options, site.contents(), "").expect(0);
    assert_eq!(names(&site.target().join("d")), ["f", "manifest"]);
    assert_eq!(
        std::fs::read(site.target().join("d/manifest")).unwrap(),
        first
    );
}

/// The leftover manifest of a killed push is not sent either. The next push with a manifest in that directory removes
/// it.
#[test]
fn the_unfinished_manifest_of_a_killed_push_is_not_sent() {
    let site = Site::daemon();
    paint(site.source().join("d/f"), 10);
    std::fs::File::create(site.source().join("large"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    paint(site.source().join("d/.zmove-manifest-0123456789abcdef"), 10);
    let hidden = |place: &Path| {
        let names = names(place).into_iter();
        names
            .filter(|name| name.starts_with(".zmove-") && !name.starts_with(".zmove-manifest-"))
            .count()
    };
    let place = site.source().join("d/manifest");
    let options = ["--sparse", "never", "--manifest", place.to_str().unwrap()];
    let proxy = Proxy::start(site.the_daemon().address, 1 << 20);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let mut killed = site.push_by(&proxy.address, &options).start();
    proxy.wait_for_stall();
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(hidden(&site.source().join("d")), 1);
    site.push(&["--delete"], site.contents(), "").done();
    assert_eq!(hidden(&site.target().join("d")), 0);
    // A file with a similar name is data.
    assert_eq!(
        names(&site.target().join("d")),
        [".zmove-manifest-0123456789abcdef", "f"]
    );
    assert_eq!(hidden(&site.source().join("d")), 1);
    site.push(&options, site.contents(), "").expect(0);
    assert_eq!(hidden(&site.source().join("d")), 0);
    assert!(place.exists());
}

fn push(site: &Site, options: &[&str]) -> Outcome {
    let manifest = site.path("manifest");
    let options = [
        &["--json", "--manifest", manifest.to_str().unwrap()],
        options,
    ]
    .concat();
    site.push(&options, site.contents(), "").expect(0)
}

/// Runs the check. Returns `None` if b3sum is missing.
fn check(site: &Site) -> Option<(bool, String)> {
    if !has_program("b3sum") {
        skip("b3sum is missing");
        return None;
    }
    let mut command = Command::new("b3sum");
    let output = command
        .arg("--check")
        .arg(site.path("manifest"))
        .current_dir(site.target())
        .output()
        .unwrap();
    Some((
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    ))
}

fn lines(manifest: &Path) -> usize {
    std::fs::read_to_string(manifest).unwrap().lines().count()
}

#[track_caller]
fn expect_all_right(site: &Site, files: usize) {
    assert_eq!(lines(&site.path("manifest")), files);
    if let Some((passed, said)) = check(site) {
        assert!(passed, "{said}");
        assert_eq!(
            said.lines().filter(|line| line.ends_with(": OK")).count(),
            files,
            "{said}"
        );
    }
}

fn b3sum_accepts_the_manifest(site: &Site) {
    paint_interesting_sizes(&site.source());
    for number in 0..300 {
        paint(
            site.source().join(format!("d/{number}/file with spaces")),
            number * 31,
        );
    }
    push(site, &[]).done();
    expect_all_right(site, 317);
}

fn b3sum_finds_changed_files(site: &Site) {
    paint(site.source().join("small"), 1_000);
    paint(
        site.source().join("large"),
        2 * zmove_types::GROUP_BYTES + 1,
    );
    push(site, &[]).done();
    for (name, bytes) in [
        ("small", 1_000),
        ("large", 2 * zmove_types::GROUP_BYTES + 1),
    ] {
        let mut changed = painted(bytes, 0);
        changed[999] ^= 1;
        std::fs::write(site.target().join(name), changed).unwrap();
        if let Some((passed, said)) = check(site) {
            assert!(
                !passed && said.contains(&format!("{name}: FAILED")),
                "{said}"
            );
        }
    }
}

fn names_with_backslash_and_newline_are_escaped(site: &Site) {
    for name in ["back\\slash", "new\nline", "\\\n\\n", "plain", "größe"] {
        paint(site.source().join("d").join(name), 77);
    }
    push(site, &[]).done();
    expect_all_right(site, 5);
}

fn names_that_b3sum_cannot_read_are_left_out_and_counted(site: &Site) {
    for name in [
        &b"caf\xe9"[..],
        "caf\u{fffd}".as_bytes(),
        b"end\r",
        b"line\nend\r",
        b"d\xff/plain",
    ] {
        paint(site.source().join(OsStr::from_bytes(name)), 10);
    }
    for name in ["plain", "in\rside", "d\r/plain", "\r\n\\."] {
        paint(site.source().join(name), 10);
    }
    push(site, &[])
        .says(&["zmove: 5 names are not UTF-8", "omitted from the manifest"])
        .lines(1);
    expect_all_right(site, 4);
}

fn files_that_were_equal_are_listed(site: &Site) {
    for (name, bytes) in [
        ("small", 1_000),
        ("d/empty", 0),
        ("large", 2 * zmove_types::GROUP_BYTES + 1),
    ] {
        paint(site.source().join(name), bytes);
        set_old(site.source().join(name));
    }
    std::fs::hard_link(
        site.source().join("small"),
        site.source().join("d/its other name"),
    )
    .unwrap();
    site.push_contents();
    let proofs = site.path("proofs");
    let options = ["--proofs", proofs.to_str().unwrap()];
    let summary = push(site, &options).done().summary();
    assert_eq!(
        (&summary["files"], &summary["skipped"]),
        (&0.into(), &4.into())
    );
    expect_all_right(site, 4);
    let looked = || {
        let text = std::fs::read_to_string(&proofs).unwrap();
        assert_eq!(text.lines().count(), lines(&site.path("manifest")));
        text.lines()
            .filter(|line| line.contains(r#""proven":["size and time"]"#))
            .count()
    };
    assert_eq!(looked(), 4);
    push(site, &["--checksum"]).done();
    expect_all_right(site, 4);
    // The mode of two files has changed, and one file is new.
    set_mode(site.source().join("large"), 0o600);
    set_mode(site.source().join("d/empty"), 0o600);
    paint(site.source().join("new"), 2_000);
    push(site, &options).done();
    expect_all_right(site, 5);
    assert_eq!(looked(), 4);
    let mut verify = site.zmove(&["verify", "--manifest", "manifest"]);
    verify.0.arg(site.target().join(""));
    verify.outcome().done();
}

fn files_that_stay_as_they_were_are_left_out_and_counted(site: &Site) {
    paint(site.source().join("f"), 1_000);
    paint(site.target().join("f"), 999);
    paint(site.source().join("new"), 1_000);
    push(site, &["--ignore-existing"])
        .says(&["zmove: the manifest lacks 1 file: ", "were not read"])
        .lines(1);
    expect_all_right(site, 1);
}

/// The killed push left some complete files and one incomplete file.
fn a_push_after_one_that_was_killed_lists_all(site: &Site) {
    for number in 0..40 {
        paint(site.source().join(format!("d/{number}")), 1_000 + number);
    }
    paint(
        site.source().join("large"),
        8 * zmove_types::GROUP_BYTES + 1,
    );
    paint(
        site.source().join("larger"),
        16 * zmove_types::GROUP_BYTES + 1,
    );
    let zeros = site.source().join("zeros");
    let limit: &[_] = if site.is_remote() {
        &["--limit", "100Mbit"]
    } else {
        // A local push has no rate limit. Copying these zeros takes seconds.
        let file = std::fs::File::create(&zeros).unwrap();
        file.set_len(8 << 30).unwrap();
        &["--sparse", "never"]
    };
    std::fs::write(site.path("killed"), "old").unwrap();
    let options = [&["--manifest", "killed"], limit].concat();
    let mut killed = site.push_command(&options, &[&site.contents()], "").start();
    let begun = Instant::now();
    let has_begun = || {
        let whole = ["large", "d/7"]
            .iter()
            .any(|name| site.target().join(name).exists());
        whole || !site.is_remote() && !names(&site.target()).is_empty()
    };
    while !has_begun() {
        assert!(begun.elapsed() < PATIENCE, "nothing arrives");
        std::thread::sleep(Duration::from_millis(2));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let kept = std::fs::read(site.path("killed")).unwrap();
    assert_eq!(
        kept, b"old",
        "an old manifest stays until a new one is complete"
    );
    if !site.is_remote() {
        std::fs::remove_file(&zeros).unwrap();
    }
    push(site, &[]);
    expect_all_right(site, 42);
    let summary = push(site, &[]).summary();
    assert_eq!(summary["skipped"], 42);
    expect_all_right(site, 42);
}

#[test]
fn a_pull_lists_all_files() {
    let site = Site::reading(&[], &[]);
    for number in 0..300 {
        paint(site.source().join(format!("d/{number}")), 1_000 + number);
    }
    paint(
        site.source().join("large"),
        2 * zmove_types::GROUP_BYTES + 1,
    );
    let pull = |options: &[&str]| {
        let proofs = ["--json", "--manifest", "manifest", "--proofs", "proofs"];
        site.pull(&[&proofs, options].concat(), &[""], "").expect(0)
    };
    let looked = || {
        let proofs = std::fs::read_to_string(site.path("proofs")).unwrap();
        assert_eq!(proofs.lines().count(), lines(&site.path("manifest")));
        proofs
            .lines()
            .filter(|line| line.contains("size and time"))
            .count()
    };
    pull(&["--exclude", "7*"]).done();
    let first = lines(&site.path("manifest"));
    assert_eq!(looked(), 0);
    pull(&[]).done();
    expect_all_right(&site, 301);
    assert_eq!(looked(), first);
    pull(&[]).done();
    expect_all_right(&site, 301);
    assert_eq!(looked(), 301);
    pull(&["--checksum"]).done();
    expect_all_right(&site, 301);
    paint(site.target().join("d/7"), 5);
    pull(&["--ignore-existing"])
        .says(&["zmove: the manifest lacks 301 files: "])
        .lines(1);
}

/// A local site with one file, and the text of its manifest.
fn one_file() -> (Site, String) {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let line = format!("{}  f\n", blake3::hash(&painted(10, 0)));
    (site, line)
}

/// Runs `zmove push --quiet --manifest PATH source/ target`.
fn push_to(site: &Site, manifest: &Path) -> Outcome {
    site.push(
        &["--quiet", "--manifest", manifest.to_str().unwrap()],
        site.contents(),
        "",
    )
}

#[test]
fn files_beside_the_manifest_stay() {
    let (site, line) = one_file();
    std::fs::create_dir(site.path("m")).unwrap();
    let place = site.path("m");
    for name in ["sums", "sums.part", ".sums", "sums~"] {
        std::fs::write(place.join(name), name).unwrap();
    }
    set_mode(place.join("sums"), 0o640);
    push_to(&site, &place.join("sums")).done();
    assert_eq!(std::fs::read_to_string(place.join("sums")).unwrap(), line);
    assert_eq!(place.join("sums").metadata().unwrap().mode() & 0o777, 0o640);
    for name in ["sums.part", ".sums", "sums~"] {
        assert_eq!(std::fs::read_to_string(place.join(name)).unwrap(), name);
    }
    assert_eq!(names(&place), [".sums", "sums", "sums.part", "sums~"]);
}

#[test]
fn an_old_manifest_stays_if_the_target_is_refused() {
    let (site, _) = one_file();
    let place = site.path("m");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("sums"), "old").unwrap();
    std::fs::write(site.path("target/file"), "in the way").unwrap();
    let options = ["--manifest", "m/sums"];
    site.push_command(&options, &["source/".as_ref()], "file")
        .outcome()
        .expect(3);
    assert_eq!(std::fs::read_to_string(place.join("sums")).unwrap(), "old");
    assert_eq!(names(&place), ["sums"]);
}

#[test]
fn a_link_to_a_manifest_is_followed() {
    let (site, line) = one_file();
    std::fs::create_dir_all(site.path("m/d")).unwrap();
    std::fs::write(site.path("m/d/sums"), "old").unwrap();
    symlink("d/sums", site.path("m/one")).unwrap();
    symlink(site.path("m/one"), site.path("m/two")).unwrap();
    symlink("d/new", site.path("m/to nothing")).unwrap();
    symlink("loop", site.path("m/loop")).unwrap();
    for (link, file) in [("two", "sums"), ("to nothing", "new")] {
        push_to(&site, &site.path("m").join(link)).done();
        assert!(
            site.path("m")
                .join(link)
                .symlink_metadata()
                .unwrap()
                .is_symlink()
        );
        assert_eq!(
            std::fs::read_to_string(site.path("m/d").join(file)).unwrap(),
            line
        );
        std::fs::remove_file(site.path("target/f")).unwrap();
    }
    assert_eq!(names(&site.path("m/d")), ["new", "sums"]);
    push_to(&site, &site.path("m/loop"))
        .expect(11)
        .says(&["create '", "m/loop'"])
        .lines(1);
    push_to(&site, &site.path("m/d"))
        .expect(11)
        .says(&["create '", "directory"])
        .lines(1);
}

#[test]
fn a_fifo_gets_the_lines_and_stays() {
    let (site, line) = one_file();
    let fifo = site.path("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let reading = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::read_to_string(fifo).unwrap()
    });
    push_to(&site, &fifo).done();
    assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());
    assert_eq!(reading.join().unwrap(), line);
}

#[test]
fn a_device_stays_a_device() {
    if !is_root() {
        return skip("making a device needs root");
    }
    let (site, _) = one_file();
    let (null, file_io) = (site.path("null"), site.path("disk"));
    for (path, words) in [(&null, ["c", "1", "3"]), (&file_io, ["b", "7", "9999"])] {
        if !Command::new("mknod")
            .arg(path)
            .args(words)
            .status()
            .unwrap()
            .success()
        {
            return skip("this container makes no devices");
        }
    }
    push_to(&site, &null).done();
    assert!(
        null.symlink_metadata()
            .unwrap()
            .file_type()
            .is_char_device()
    );
    push_to(&site, &file_io)
        .expect(11)
        .says(&["create '", "neither a regular file nor a stream"])
        .lines(1);
    assert!(
        file_io
            .symlink_metadata()
            .unwrap()
            .file_type()
            .is_block_device()
    );
}

/// `/dev/stdout` is such a link.
#[test]
fn the_manifest_may_be_written_to_standard_output() {
    let (site, line) = one_file();
    symlink("/proc/self/fd/1", site.path("stdout")).unwrap();
    for path in ["stdout", "-", "/proc/self/fd/1"] {
        assert_eq!(push_to(&site, Path::new(path)).done().stdout, line);
        std::fs::remove_file(site.path("target/f")).unwrap();
    }
    assert!(
        site.path("stdout").symlink_metadata().unwrap().is_symlink() && !site.path("-").exists()
    );
    let mut said = String::new();
    let out = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(site.path("out"))
        .unwrap();
    let mut zmove = site.push_command(&["--manifest", "stdout"], &["source/".as_ref()], "");
    assert!(zmove.0.stdout(out).status().unwrap().success());
    std::fs::File::open(site.path("out"))
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(
        said.starts_with(&line) && said.contains("1 file, 10 B"),
        "{said}"
    );
}
