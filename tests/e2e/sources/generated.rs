//! Files of proc and similar file systems, whose contents are made when they are read.

use std::path::{Path, PathBuf};

use crate::support::harness::{Site, both_ways, skip};
use crate::support::tree::names;

both_ways!(
    files_of_any_length_arrive_with_their_contents,
    a_file_without_an_end_is_named_and_the_others_arrive,
    a_file_that_blocks_is_named_and_the_others_arrive,
);

/// The files of a directory of sysfs, each of the length of a page as far as `stat` tells.
const SETTINGS: &str = "/sys/module/printk/parameters";

fn push(site: &Site, options: &[&str], sources: &[&Path]) -> crate::support::command::Outcome {
    let sources: Vec<_> = sources.iter().map(|path| path.as_os_str()).collect();
    site.push_command(options, &sources, "").outcome()
}

fn assert_contents(source: &Path, target: &Path) {
    let expected = std::fs::read(source).unwrap();
    assert!(!expected.is_empty(), "{source:?}");
    assert!(std::fs::read(target).unwrap() == expected, "{source:?}");
}

fn files_of_any_length_arrive_with_their_contents(site: &Site) {
    // The last one is longer than a group.
    let files = ["/proc/version", "/proc/filesystems", "/proc/kallsyms"].map(Path::new);
    let settings = Path::new(SETTINGS);
    let sources = [&files[..], &[settings]].concat();
    for options in [&[][..], &["--checksum"]] {
        push(site, options, &sources).done();
        for file in files {
            assert_contents(file, &site.target().join(file.file_name().unwrap()));
        }
        for name in ["console_suspend", "time"] {
            let copied = site.target().join("parameters").join(name);
            assert_contents(&settings.join(name), &copied);
        }
    }
    let compared = site
        .zmove(&[
            "verify",
            SETTINGS,
            "/proc/kallsyms",
            site.address("").to_str().unwrap(),
        ])
        .outcome();
    // The times are those at which the kernel has made the nodes.
    assert!(
        [Some(0), Some(6)].contains(&compared.code),
        "{}",
        compared.stderr
    );
    for difference in ["size", "contents"] {
        assert!(!compared.stdout.contains(difference), "{}", compared.stdout);
    }
}

fn own(name: &str) -> PathBuf {
    Path::new("/proc")
        .join(std::process::id().to_string())
        .join(name)
}

fn a_file_without_an_end_is_named_and_the_others_arrive(site: &Site) {
    let endless = own("pagemap");
    let outcome = push(site, &[], &[&endless, Path::new("/proc/version")]).expect(23);
    let line = format!(
        "zmove: sender: read '{}': it does not end",
        endless.display()
    );
    outcome.says(&[&line]).lines(1);
    assert_eq!(names(&site.target()), ["version"]);
}

fn a_file_that_blocks_is_named_and_the_others_arrive(site: &Site) {
    let blocks = Path::new("/sys/kernel/tracing/trace_pipe");
    if std::fs::File::open(blocks).is_err() {
        return skip("no trace_pipe can be opened");
    }
    let outcome = push(site, &[], &[blocks, Path::new("/proc/version")]).expect(23);
    let line = format!(
        "zmove: sender: read '{}': reading it blocks",
        blocks.display()
    );
    outcome.says(&[&line]).lines(1);
    assert_eq!(names(&site.target()), ["version"]);
}
