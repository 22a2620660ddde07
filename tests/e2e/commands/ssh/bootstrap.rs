//! Hosts without zmove: the near end sends its helper program there.

use std::fs::{DirBuilder, read_dir};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Sshd, SshdPlace, paint, script};
use crate::commands::pull::assert_counts;
use crate::support::command::{Outcome, ZMOVE};
use crate::support::harness::{Site, has_program, is_root, skip};
use crate::support::tree::{assert_same, set_mode};

/// A site with an ssh server, in whose sessions no zmove is in the search path.
struct FarHost {
    site: Site,
    sshd: Sshd,
}

impl FarHost {
    fn start() -> Option<Self> {
        Self::start_with(&[], "")
    }

    /// Starts the server with a command, and with more variables in the environment of its sessions.
    fn start_with(enter: &[&str], environment: &str) -> Option<Self> {
        let site = Site::local();
        Self::start_in(site, enter, environment, "")
    }

    /// Starts the server with more lines of its configuration.
    fn start_in(site: Site, enter: &[&str], environment: &str, config: &str) -> Option<Self> {
        let home = site.path("home");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&home)
            .unwrap();
        let environment = format!("HOME={} PATH=/usr/bin:/bin {environment}", home.display());
        let enter: Vec<_> = enter.iter().map(|word| (*word).to_owned()).collect();
        let place = SshdPlace {
            enter: &enter,
            environment: &environment,
            config,
            ..SshdPlace::default()
        };
        let sshd = Sshd::start_at(&site, &place)?;
        paint(&site);
        Some(Self { site, sshd })
    }

    fn cache(&self) -> PathBuf {
        self.site.path("home/.cache")
    }

    /// Runs a command over ssh, like a script.
    fn run(&self, words: &[&str]) -> Outcome {
        let (command, words) = words.split_first().unwrap();
        let ssh = self.sshd.command();
        let options = [*command, "--ssh-command", &ssh];
        self.site.zmove(&[&options, words].concat()).outcome()
    }

    /// Pushes `source/` to `target`.
    fn push(&self, options: &[&str]) -> Outcome {
        let target = self.sshd.at_target(&self.site);
        self.run(&[&["push", "--json"], options, &["source/", &target]].concat())
    }

    /// Pushes and expects that the helper was sent.
    #[track_caller]
    fn bootstrap(&self) {
        let pushed = self.push(&["--bootstrap"]).expect(0);
        let pushed = pushed.says(&["zmove: sending a helper program to "]);
        assert_counts(&pushed.summary(), &[("failed", 0)]);
        assert_same(&self.site.source(), &self.site.target());
    }
}

/// The only helper below a directory.
fn helper(base: &Path) -> PathBuf {
    let mut versions = read_dir(base.join("zmove")).unwrap();
    let version = versions.next().unwrap().unwrap().path();
    assert!(versions.next().is_none());
    let names: Vec<_> = read_dir(&version)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["zmove-far"], "no temporary file stays");
    version.join("zmove-far")
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_host_without_zmove_gets_the_helper_once() {
    let Some(far) = FarHost::start() else {
        return;
    };
    far.bootstrap();
    let helper = helper(&far.cache());
    for path in [
        &helper,
        helper.parent().unwrap(),
        &far.cache().join("zmove"),
        &far.cache(),
    ] {
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
    let stored = helper.metadata().unwrap().ino();
    // A script without the option would fail if the helper had to be sent again.
    let again = far.push(&[]).expect(0);
    assert!(!again.stderr.contains("helper"), "{}", again.stderr);
    let target = far.sshd.at_target(&far.site);
    far.run(&["verify", "source/", &target]).done();
    let back = far.site.path("back");
    let source = format!("{target}/");
    far.run(&["pull", &source, back.to_str().unwrap()]).done();
    assert_same(&far.site.source(), &back);
    std::fs::remove_file(far.site.source().join("sub/small")).unwrap();
    let through = ["--via", "ssh", "--delete", "--preserve", "owner"];
    let through = far.push(&through).done();
    assert_eq!(through.summary()["transport"], "ssh");
    assert_same(&far.site.source(), &far.site.target());
    assert_eq!(helper.metadata().unwrap().ino(), stored);
}

#[test]
fn the_helper_connects_lanes_where_a_server_forwards_nothing() {
    let config = "AllowTcpForwarding no\n";
    let Some(far) = FarHost::start_in(Site::local(), &[], "", config) else {
        return;
    };
    let pushed = far.push(&["--bootstrap", "--via", "ssh"]).expect(0);
    let summary = pushed
        .says(&["the data uses sessions of the login"])
        .summary();
    assert_eq!(summary["transport"], "ssh", "{summary}");
    assert!(summary["lanes"].as_u64() >= Some(2), "{summary}");
    assert_same(&far.site.source(), &far.site.target());
}

#[test]
fn a_program_without_the_helper_cannot_send_it() {
    let site = Site::local();
    let alone = site.path("alone/zmove");
    std::fs::create_dir(alone.parent().unwrap()).unwrap();
    // If this process wrote the file, children that start meanwhile would keep it open for writing.
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg(ZMOVE).arg(&alone).status().unwrap().success());
    let mut push = std::process::Command::new(&alone);
    push.env("ZMOVE_HOME", site.path("home"));
    push.args(["push", "--bootstrap"]).arg(site.source());
    let pushed = push.arg("user@127.0.0.1:target").output().unwrap();
    let said = String::from_utf8_lossy(&pushed.stderr);
    assert_eq!(pushed.status.code(), Some(1), "{said}");
    assert!(
        said.contains("--bootstrap: this installation has no helper"),
        "{said}"
    );
}

#[test]
fn a_script_must_allow_the_helper() {
    let Some(far) = FarHost::start() else {
        return;
    };
    let path = far.cache().join("zmove/");
    far.push(&[]).expect(10).says(&[
        "zmove: ",
        "has no zmove of this protocol version: run again with --bootstrap to send a helper program there (",
        path.to_str().unwrap(),
        "SHA-256 ",
    ]);
    assert!(!far.cache().exists());
    let target = far.sshd.at_target(&far.site);
    let mut allowed = far.site.zmove(&[
        "push",
        "--ssh-command",
        &far.sshd.command(),
        "source/",
        &target,
    ]);
    allowed.0.env("ZMOVE_BOOTSTRAP", "yes");
    allowed
        .outcome()
        .expect(0)
        .says(&["sending a helper program"]);
}

#[test]
fn a_changed_helper_is_not_started_but_replaced() {
    let Some(far) = FarHost::start() else {
        return;
    };
    far.bootstrap();
    let helper = helper(&far.cache());
    let marker = far.site.path("marker");
    let evil = format!("#!/bin/sh\ntouch '{}'\n", marker.display());
    std::fs::write(&helper, &evil).unwrap();
    far.push(&[])
        .expect(10)
        .says(&["run again with --bootstrap"]);
    assert_eq!(std::fs::read_to_string(&helper).unwrap(), evil);
    far.bootstrap();
    far.push(&[]).done();
    assert!(!marker.exists());
}

#[test]
fn a_place_that_others_could_change_is_refused() {
    let Some(far) = FarHost::start() else {
        return;
    };
    let elsewhere = far.site.path("elsewhere");
    DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
    let cache = far.cache();
    let refused = |place: &Path| {
        let reason = format!("{} must be a directory, not a link", place.display());
        let reasons = [
            reason.as_str(),
            "XDG_RUNTIME_DIR is not set",
            "install zmove there",
        ];
        far.push(&["--bootstrap"]).expect(10).says(&reasons);
        assert_eq!(read_dir(&elsewhere).unwrap().count(), 0);
    };
    let home = far.site.path("home");
    set_mode(&home, 0o777);
    let reasons = ["home must belong to this user, with mode 700 or 755"];
    far.push(&["--bootstrap"]).expect(10).says(&reasons);
    set_mode(&home, 0o700);
    symlink(&elsewhere, &cache).unwrap();
    refused(&cache);
    std::fs::remove_file(&cache).unwrap();
    std::fs::create_dir(&cache).unwrap();
    set_mode(&cache, 0o770);
    refused(&cache);
    set_mode(&cache, 0o755);
    let zmove = cache.join("zmove");
    symlink(&elsewhere, &zmove).unwrap();
    refused(&zmove);
    std::fs::remove_file(&zmove).unwrap();
    far.bootstrap();
    // The same holds for a helper that exists.
    set_mode(&home, 0o777);
    far.push(&[])
        .expect(10)
        .says(&["run again with --bootstrap"]);
    set_mode(&home, 0o700);
    let stored = helper(&cache);
    let version = stored.parent().unwrap();
    set_mode(version, 0o750);
    far.push(&[])
        .expect(10)
        .says(&["run again with --bootstrap"]);
    refused(version);
    set_mode(version, 0o700);
    far.push(&[]).done();
}

/// Starts a server to which the cache is mounted without permission to execute.
fn with_noexec_cache(environment: impl Fn(&Site) -> String) -> Option<FarHost> {
    if !is_root() || !has_program("unshare") {
        skip("a file system mounted with noexec needs root and unshare");
        return None;
    }
    let site = Site::local();
    let cache = site.path("home/.cache");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&cache)
        .unwrap();
    let mount = format!(
        "mount -t tmpfs -o noexec,mode=700 none '{}' && exec \"$@\"",
        cache.display()
    );
    let environment = environment(&site);
    FarHost::start_in(
        site,
        &["unshare", "--mount", "sh", "-c", &mount, "sh"],
        &environment,
        "",
    )
}

#[test]
fn the_helper_runs_elsewhere_if_the_cache_forbids_execution() {
    let Some(far) = with_noexec_cache(|site| {
        let run = site.path("run");
        DirBuilder::new().mode(0o700).create(&run).unwrap();
        format!("XDG_RUNTIME_DIR={}", run.display())
    }) else {
        return;
    };
    far.bootstrap();
    helper(&far.site.path("run"));
    far.push(&[]).done();
}

#[test]
fn a_refused_execution_is_named() {
    let Some(far) = with_noexec_cache(|_| String::new()) else {
        return;
    };
    let cache = far.cache();
    far.push(&["--bootstrap"]).expect(10).says(&[
        "zmove: start the helper program on ",
        cache.to_str().unwrap(),
        "Permission denied; XDG_RUNTIME_DIR is not set (give it one of these directories",
        "--remote-zmove",
    ]);
}

#[test]
fn three_versions_stay() {
    let Some(far) = FarHost::start() else {
        return;
    };
    far.bootstrap();
    let current = helper(&far.cache());
    let zmove = far.cache().join("zmove");
    let version = |number: u32| zmove.join(format!("0.0.{number}-0123456789abcdef"));
    for number in 1..=4 {
        DirBuilder::new()
            .mode(0o700)
            .create(version(number))
            .unwrap();
        std::fs::write(version(number).join("zmove-far"), "").unwrap();
        let age =
            std::time::SystemTime::now() - std::time::Duration::from_secs(1000 - u64::from(number));
        let directory = std::fs::File::open(version(number)).unwrap();
        directory.set_modified(age).unwrap();
    }
    std::fs::write(zmove.join("other"), "").unwrap();
    std::fs::remove_file(&current).unwrap();
    far.bootstrap();
    let stays = [1, 2, 3, 4].map(|number| version(number).exists());
    assert_eq!(stays, [false, false, true, true]);
    assert!(current.exists() && zmove.join("other").exists());
}

/// Creates a directory with only these programs of the system.
fn with_programs(site: &Site, names: &[&str]) -> PathBuf {
    let directory = site.path("programs");
    std::fs::create_dir(&directory).unwrap();
    for name in names {
        let found = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(name));
        let found = found.iter().find(|path| path.exists()).unwrap();
        symlink(found, directory.join(name)).unwrap();
    }
    directory
}

#[test]
fn a_host_that_cannot_compute_digests_is_read_back() {
    let site = Site::local();
    let programs = [
        "sh", "ls", "uname", "head", "cat", "chmod", "mkdir", "mv", "rm", "tail", "wc",
    ];
    let programs = with_programs(&site, &programs);
    let Some(far) = FarHost::start_in(site, &[], "", "") else {
        return;
    };
    far.restrict(&format!(
        "PATH='{}'; export PATH; eval \\\"$SSH_ORIGINAL_COMMAND\\\"",
        programs.display()
    ));
    far.bootstrap();
    far.push(&[]).done();
    let helper = helper(&far.cache());
    let mut changed = std::fs::read(&helper).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&helper, changed).unwrap();
    far.push(&[])
        .expect(10)
        .says(&["run again with --bootstrap"]);
    far.bootstrap();
    far.push(&[]).done();
}

impl FarHost {
    /// Makes every session run a shell command instead of the login shell.
    fn restrict(&self, command: &str) {
        let key = std::fs::read_to_string(self.sshd.home.join("user_key.pub")).unwrap();
        let restricted = format!("command=\"{command}\" {key}");
        std::fs::write(self.sshd.home.join("authorized_keys"), restricted).unwrap();
    }
}

#[test]
fn every_login_shell_starts_the_helper() {
    let Some(far) = FarHost::start() else {
        return;
    };
    let shells = ["dash", "bash", "fish", "tcsh"];
    for shell in shells {
        if !has_program(shell) {
            skip(&format!("{shell} is not installed"));
            continue;
        }
        far.restrict(&format!("exec {shell} -c \\\"$SSH_ORIGINAL_COMMAND\\\""));
        // The cache of the shell before.
        drop(std::fs::remove_dir_all(far.cache().join("zmove")));
        far.bootstrap();
        far.push(&[]).done();
    }
}

#[test]
fn a_zmove_of_this_protocol_comes_first() {
    let site = Site::local();
    let programs = site.path("programs");
    std::fs::create_dir(&programs).unwrap();
    let other = "echo 'zmove 9.9.9, protocol version 9'; exit 2";
    let other = script(&site, "programs/zmove", other);
    let Some(far) = FarHost::start_in(site, &[], "", "") else {
        return;
    };
    far.restrict(&format!(
        "PATH='{}':$PATH; eval \\\"$SSH_ORIGINAL_COMMAND\\\"",
        programs.display()
    ));
    far.push(&[])
        .expect(10)
        .says(&["has no zmove of this protocol version"]);
    far.bootstrap();
    std::fs::remove_dir_all(far.cache()).unwrap();
    std::fs::remove_file(&other).unwrap();
    symlink(ZMOVE, &other).unwrap();
    far.push(&["--bootstrap"]).done();
    assert!(!far.cache().exists());
}
