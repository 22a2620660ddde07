//! Privileges that a daemon gives up before it serves: those of root, and access to unrelated files.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::process::Command;

use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};
use zmove_types::GROUP_BYTES;

use crate::support::command::{NOBODY, Outcome, Runner, Zmove};
use crate::support::daemon::Daemon;
use crate::support::harness::{Site, has_program, is_root, own_all, skip};
use crate::support::tree::{assert_same, names, paint};

const ENGINES: [&str; 2] = ["threads", "uring"];
const TRANSPORTS: [&str; 2] = ["tcp", "quic"];

/// A site whose daemon state and target belong to an unprivileged user. Returns `None` if this process cannot switch
/// users.
fn given_away() -> Option<Site> {
    if !is_root() {
        skip("not root: cannot become another user");
        return None;
    }
    let site = Site::local();
    site.authorize(Access::WriteOnly);
    std::fs::create_dir(site.path("state")).unwrap();
    own_all(&site.path("state"));
    own_all(&site.target());
    Some(site)
}

fn paint_sources(site: &Site) {
    paint(site.source().join("d/small"), 10);
    paint(site.source().join("large"), 3 * GROUP_BYTES + 1);
    (0..20).for_each(|number| paint(site.source().join(format!("n/{number}")), number));
}

/// Runs the program with root's settings and the state of the daemon's user.
fn command(site: &Site) -> Command {
    let mut command = Runner::default().zmove(&site.path("server")).0;
    let state = site.path("state");
    if state.exists() {
        command.env("STATE_DIRECTORY", state);
    }
    command
}

fn start(site: &Site, options: &[&str]) -> Daemon {
    let options = [&["--listen", "127.0.0.1:0", "--metrics", "off"], options].concat();
    let daemon = Daemon::run(command(site), &options);
    site.pin(&daemon.address, daemon.fingerprint);
    daemon
}

fn push(site: &Site, daemon: &Daemon, options: &[&str], path: &str) -> Outcome {
    let mut zmove = site.zmove(&["push", "--quiet"]);
    zmove
        .0
        .args(options)
        .arg(site.contents())
        .arg(format!("{}:{path}", daemon.address));
    zmove.outcome()
}

/// Runs `zmove serve`, which must fail before it listens.
fn serve(site: &Site, options: &[&str]) -> Outcome {
    let mut command = command(site);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--metrics", "off"])
        .args(options);
    Zmove(command).outcome()
}

fn grant_later(site: &Site, root: &str) {
    let fingerprint = Identity::load_or_create(&site.path("client"))
        .unwrap()
        .fingerprint();
    std::fs::create_dir_all(site.path(root)).unwrap();
    let grant = Grant::new(
        fingerprint,
        "tester",
        vec![site.path(root).canonicalize().unwrap()],
        Access::WriteOnly,
    );
    AuthorizedKeys::allow(&site.path("server"), grant).unwrap();
}

#[track_caller]
fn assert_all_are(status: &str, name: &str, wanted: &str) {
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let mut values = line.split_whitespace().skip(1).peekable();
    assert!(
        values.peek().is_some() && values.all(|value| value == wanted),
        "{line}"
    );
}

#[test]
fn a_daemon_that_has_become_another_user_has_nothing_left_of_root_in_any_thread() {
    for engine in ENGINES {
        let Some(site) = given_away() else { return };
        paint_sources(&site);
        let daemon = start(&site, &["--user", "nobody", "--io-engine", engine]);
        for transport in TRANSPORTS {
            push(&site, &daemon, &["--transport", transport], transport).done();
            assert_same(&site.source(), &site.target().join(transport));
            for name in ["", "d", "d/small", "large"] {
                let metadata = site.target().join(transport).join(name).metadata().unwrap();
                assert_eq!((metadata.uid(), metadata.gid()), (NOBODY, NOBODY), "{name}");
            }
        }
        let threads = daemon.threads();
        assert!(threads.len() > 1);
        for status in &threads {
            for ids in ["Uid:", "Gid:", "Groups:"] {
                assert_all_are(status, ids, &NOBODY.to_string());
            }
            for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert_all_are(status, capabilities, "0000000000000000");
            }
            assert_all_are(status, "NoNewPrivs:", "1");
        }
        assert_eq!(site.path("state/key.pem").metadata().unwrap().uid(), NOBODY);
    }
}

/// The session keyring is inherited, and may hold root's keys of Kerberos or of encrypted directories.
#[test]
fn a_process_that_becomes_another_user_leaves_the_keyring_of_root() {
    let Some(site) = given_away() else { return };
    if !has_program("strace") {
        return skip("no strace: the system calls cannot be seen");
    }
    let log = site.path("log");
    let traced = command(&site);
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-e", "trace=keyctl,setuid", "-o"])
        .args([log.as_os_str(), traced.get_program()])
        .args(["serve", "--check", "--user", "nobody"])
        .envs(
            traced
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    Zmove(strace).outcome().done();
    let log = std::fs::read_to_string(log).unwrap();
    let (before, _) = log.split_once(&format!("setuid({NOBODY})")).unwrap();
    assert!(
        before.contains("keyctl(KEYCTL_JOIN_SESSION_KEYRING, NULL)"),
        "{log}"
    );
}

/// Root starts the daemon with relative paths, and with variables that name root's files.
#[test]
fn a_daemon_that_has_become_another_user_has_nothing_of_root_s_shell() {
    let Some(site) = given_away() else { return };
    let own = site.path("own");
    let in_shell = || {
        let mut command = command(&site);
        command.current_dir(site.path(""));
        command
            .env("ZMOVE_HOME", "server")
            .env("STATE_DIRECTORY", "state");
        for name in ["HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "SUDO_HOME"] {
            command.env(name, &own);
        }
        command.env("USER", "root").env("LOGNAME", "root");
        command.env("PATH", format!("{}:/usr/bin:/bin", own.display()));
        command
    };
    let config = site.path("server/zmove.toml");
    std::fs::write(&config, "user = \"nobody\"\n").unwrap();
    let options = ["--listen", "127.0.0.1:0", "--metrics", "off"];
    let by_config = ["--config", "server/zmove.toml"];
    let daemon = Daemon::run(in_shell(), &[&options[..], &by_config].concat());
    let process = format!("/proc/{}", daemon.pid().as_raw_nonzero());
    let link = |name: &str| std::fs::read_link(format!("{process}/{name}")).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    let environment = std::fs::read_to_string(format!("{process}/environ")).unwrap();
    let variables = environment.split('\0');
    let variables: BTreeMap<_, _> = variables.filter_map(|line| line.split_once('=')).collect();
    let account = account_of("nobody");
    for (name, value) in [
        ("HOME", account[5].as_str()),
        ("SHELL", account[6].as_str()),
        ("USER", "nobody"),
        ("LOGNAME", "nobody"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ] {
        assert_eq!(variables.get(name), Some(&value), "{name}");
    }
    assert!(
        !environment.contains(own.to_str().unwrap()),
        "{environment}"
    );
    // The paths of the command line still lead to the same files.
    std::fs::write(&config, "user = \"nobody\"\n[limits]\ntransfers = 5\n").unwrap();
    daemon.hang_up();
    daemon.wait_for_log("transfers: 5");
    drop(daemon);
    let to_file = ["--user", "nobody", "--log-file", "state/log"];
    let daemon = Daemon::run(in_shell(), &[&options[..], &to_file].concat());
    site.pin(&daemon.address, daemon.fingerprint);
    paint_sources(&site);
    push(&site, &daemon, &[], "").done();
    let log = std::fs::read_to_string(site.path("state/log")).unwrap();
    assert!(log.contains("listening on"), "{log}");
}

/// Returns the fields of a user's line in `/etc/passwd`.
fn account_of(name: &str) -> Vec<String> {
    let line = Command::new("getent").args(["passwd", name]).output();
    let line = String::from_utf8(line.unwrap().stdout).unwrap();
    line.trim_end().split(':').map(str::to_owned).collect()
}

#[test]
fn serve_refuses_unknown_users_and_root() {
    let Some(site) = given_away() else { return };
    serve(&site, &["--user", "no-such-user"])
        .expect(1)
        .says(&["there is no user 'no-such-user'"])
        .lines(1);
    serve(&site, &["--user", "root"])
        .expect(1)
        .says(&["'root' is root"])
        .lines(1);
    serve(&site, &["--check", "--user", "no-such-user"])
        .expect(1)
        .says(&["there is no user"])
        .lines(1);
    serve(&site, &["--check", "--user", "nobody"]).done();
    std::fs::write(site.path("server/zmove.toml"), "user = \"no-such-user\"\n").unwrap();
    for options in [&[][..], &["--check"]] {
        serve(&site, options)
            .expect(1)
            .says(&["there is no user 'no-such-user'"])
            .lines(1);
    }
}

#[test]
fn a_daemon_without_root_cannot_change_its_user() {
    let Some(mut site) = Site::unprivileged() else {
        return;
    };
    let mut other = site.zmove(&["serve", "--listen", "127.0.0.1:0", "--user", "daemon"]);
    other.0.env("ZMOVE_HOME", site.path("server"));
    other
        .outcome()
        .expect(1)
        .says(&["only root can become another user"])
        .lines(1);
    if !is_root() {
        return skip("not root: whose account this is has no name that is known here");
    }
    site.start_daemon_with(&["--user", "nobody"]);
    paint(site.source().join("d/small"), 10);
    site.give_away();
    site.push(&["--quiet"], site.contents(), "").done();
    assert_same(&site.source(), &site.target());
}

/// For each file that the operator has left with root, a message states the command that fixes it. After all commands
/// the daemon serves.
#[test]
fn files_that_the_user_cannot_read_are_reported_with_the_command_that_fixes_it() {
    if !is_root() {
        return skip("not root: cannot become another user");
    }
    let site = Site::local();
    site.authorize(Access::WriteOnly);
    let home = site.path("server");
    let list = home.join("authorized_keys");
    let state = site.path("state");
    std::fs::create_dir(&state).unwrap();
    let config = site.path("settings.toml");
    std::fs::write(&config, "user = \"nobody\"\n").unwrap();
    for (path, mode) in [
        (&config, 0o600),
        (&list, 0o600),
        (&home, 0o700),
        (&site.path("."), 0o700),
    ] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let options = ["--config", config.to_str().unwrap()];
    let name = |path: &Path| format!("'{}'", path.display());
    for path in [&site.path("."), &home, &list, &config, &state] {
        let path = path.canonicalize().unwrap();
        let outcome = serve(&site, &options)
            .expect(11)
            .says(&["the user 'nobody' cannot use", &name(&path)])
            .lines(1);
        let (_, line) = outcome.stderr.trim_end().rsplit_once("run: ").unwrap();
        let gives_settings = line.contains("chown") || line.contains("-o nobody");
        assert!(
            path == state.canonicalize().unwrap() || !gives_settings,
            "{line}"
        );
        assert!(
            Command::new("sh")
                .args(["-c", line])
                .status()
                .unwrap()
                .success(),
            "{line}"
        );
    }
    let daemon = start(&site, &options);
    daemon.wait_for_log("the user 'nobody' cannot write to the root");
    own_all(&site.target());
    push(&site, &daemon, &[], "").done();
}

#[test]
fn keys_and_settings_are_reloaded_as_the_user() {
    let Some(site) = given_away() else { return };
    let daemon = start(&site, &["--user", "nobody"]);
    paint(site.source().join("d/small"), 10);
    let settings = site.path("server/zmove.toml");
    std::fs::write(&settings, "[limits]\ntransfers = 5\n").unwrap();
    std::fs::set_permissions(&settings, PermissionsExt::from_mode(0o600)).unwrap();
    daemon.hang_up();
    daemon.wait_for_log("not changed: ");
    daemon.wait_for_log("zmove.toml: Permission denied");
    std::fs::set_permissions(&settings, PermissionsExt::from_mode(0o644)).unwrap();
    daemon.hang_up();
    daemon.wait_for_log("transfers: 5");
    // The list belongs to root, and the user can read it.
    grant_later(&site, "target");
    push(&site, &daemon, &[], "").done();
    let list = site.path("server/authorized_keys");
    std::fs::set_permissions(&list, PermissionsExt::from_mode(0o600)).unwrap();
    push(&site, &daemon, &[], "")
        .expect(10)
        .says(&["the receiver cannot read its authorized_keys; see its log"]);
    daemon.wait_for_log("authorized_keys: Permission denied");
    std::fs::set_permissions(&list, PermissionsExt::from_mode(0o644)).unwrap();
    push(&site, &daemon, &[], "").done();
}

/// A site whose client may write to the target. Returns `None` if the kernel cannot confine processes.
fn confinable() -> Option<Site> {
    let site = Site::local();
    site.authorize(Access::WriteOnly);
    paint(site.source().join("d/small"), 10);
    let check = serve(&site, &["--check", "--confine"]);
    if check.stderr.contains("Landlock") {
        skip("this kernel has no Landlock, or an old one");
        return None;
    }
    check.done();
    Some(site)
}

#[test]
fn a_confined_daemon_takes_pushes_of_every_kind() {
    for engine in ENGINES {
        let Some(site) = confinable() else { return };
        paint_sources(&site);
        let daemon = start(
            &site,
            &["--confine", "--allow-clear", "--io-engine", engine],
        );
        daemon.wait_for_log("confined to its roots by Landlock");
        let ways: [&[&str]; 6] = [
            &["--transport", "tcp"],
            &["--transport", "quic", "--checksum"],
            &["--cipher", "none", "--delta", "always"],
            &["--inplace"],
            &["--delete", "--durability", "file"],
            &["--delete", "--dry-run"],
        ];
        for (way, number) in ways.into_iter().zip(0..) {
            push(&site, &daemon, way, "").expect(0);
            let large = [site.source(), site.target()]
                .map(|tree| std::fs::read(tree.join("large")).unwrap());
            assert!(large[0] == large[1], "{way:?}");
            if way.contains(&"--durability") {
                assert_same(&site.source(), &site.target());
            } else if !way.contains(&"--delete") {
                paint(site.source().join("large"), (2 + number) * GROUP_BYTES);
                paint(site.target().join("alone"), 10);
            }
        }
        for status in daemon.threads() {
            assert_all_are(&status, "NoNewPrivs:", "1");
        }
        assert_eq!(daemon.terminate(), Some(0));
    }
}

#[test]
fn a_confined_daemon_reaches_no_root_that_came_later() {
    for (confine, reached) in [("on", false), ("auto", false), ("off", true)] {
        let Some(site) = confinable() else { return };
        let daemon = start(&site, &["--confine", confine]);
        grant_later(&site, "later");
        let later = site.path("later").canonicalize().unwrap();
        let target = later.to_str().unwrap();
        for options in [&[][..], &["--dry-run"], &["--transport", "quic"]] {
            let outcome = push(&site, &daemon, options, target);
            if reached {
                outcome.expect(0);
                continue;
            }
            outcome.expect(3).says(&[
                "open root",
                target,
                "Permission denied",
                "confine in zmove.toml, restart it",
            ]);
            assert!(names(&later).is_empty());
        }
        push(&site, &daemon, &[], "").done();
        if !reached {
            let line = daemon.wait_for_log("confine in zmove.toml, restart it");
            assert!(
                line.contains(target) && line.contains("broken off by tester"),
                "{line}"
            );
            let daemon = start(&site, &["--confine", confine]);
            push(&site, &daemon, &[], target).done();
        }
        assert_same(&site.source(), &later);
    }
}

/// Creating the directory again under the same name does not help: the kernel's rules apply to the directories that
/// existed at the start.
#[test]
fn a_root_that_is_missing_at_the_start_is_reported() {
    let Some(site) = confinable() else { return };
    std::fs::remove_dir(site.target()).unwrap();
    let daemon = start(&site, &["--confine"]);
    daemon.wait_for_log("is not accessible until a restart (--confine): No such file or directory");
    push(&site, &daemon, &[], "")
        .expect(3)
        .says(&["open root", "No such file"]);
    std::fs::create_dir(site.target()).unwrap();
    push(&site, &daemon, &[], "")
        .expect(3)
        .says(&["open root", "Permission denied", "restart it"]);
}

#[test]
fn a_confined_daemon_reloads_keys_and_settings() {
    let Some(site) = confinable() else { return };
    std::fs::create_dir(site.path("etc")).unwrap();
    let settings = site.path("etc/zmove.toml");
    std::fs::write(&settings, "confine = \"on\"\n").unwrap();
    let daemon = start(&site, &["--config", settings.to_str().unwrap()]);
    // Replaces the file by renaming, as editors do.
    std::fs::write(site.path("etc/new"), "[limits]\ntransfers = 5\n").unwrap();
    std::fs::rename(site.path("etc/new"), &settings).unwrap();
    daemon.hang_up();
    daemon.wait_for_log("transfers: 5");
    site.zmove(&["key", "new", "--force"]).outcome().expect(0);
    push(&site, &daemon, &[], "")
        .expect(5)
        .says(&["this key is not known here"]);
    grant_later(&site, "target");
    push(&site, &daemon, &[], "").done();
}

#[test]
fn a_confined_daemon_may_run_as_another_user() {
    let Some(site) = given_away() else { return };
    if confinable().is_none() {
        return;
    }
    paint(site.source().join("d/small"), 10);
    let daemon = start(&site, &["--confine", "--user", "nobody"]);
    daemon.wait_for_log("confined to its roots by Landlock");
    for status in daemon.threads() {
        assert_all_are(&status, "Uid:", &NOBODY.to_string());
        assert_all_are(&status, "NoNewPrivs:", "1");
    }
    push(&site, &daemon, &[], "").done();
    assert_same(&site.source(), &site.target());
    // Neither the user nor the rules give access to a root that is added later.
    grant_later(&site, "later");
    own_all(&site.path("later"));
    let later = site.path("later").canonicalize().unwrap();
    push(&site, &daemon, &[], later.to_str().unwrap())
        .expect(3)
        .says(&["open root", "Permission denied", "restart it"]);
    assert_eq!(
        names(&site.path("state")),
        ["control.sock", "copies", "journal", "key.pem", "learnt"]
    );
}

/// Root can read source directories with any mode. At the target their owner may not even be allowed to list them.
#[test]
fn directories_that_their_owner_may_not_enter_are_repeated_changed_and_emptied() {
    let Some(site) = given_away() else { return };
    let daemon = start(&site, &["--user", "nobody"]);
    let closed = [0o000, 0o100, 0o200, 0o300, 0o400, 0o500];
    let name = |mode: &u32| format!("outer{mode:o}/closed{mode:o}");
    for mode in &closed {
        (0..12).for_each(|number| {
            paint(
                site.source().join(name(mode)).join(number.to_string()),
                number,
            )
        });
        paint(site.source().join(name(mode)).join("below/f"), 10);
    }
    let close = || {
        for mode in &closed {
            let path = site.source().join(name(mode));
            for path in [path.as_path(), path.parent().unwrap()] {
                std::fs::set_permissions(path, PermissionsExt::from_mode(*mode)).unwrap();
            }
        }
    };
    close();
    let pushed = |options: &[&str]| {
        push(&site, &daemon, options, "").done();
        assert_same(&site.source(), &site.target());
    };
    pushed(&[]);
    pushed(&[]);
    push(&site, &daemon, &["--dry-run"], "").done();
    for mode in &closed {
        paint(site.source().join(name(mode)).join("3"), 77);
        paint(site.source().join(name(mode)).join("below/new/f"), 7);
        std::fs::remove_file(site.source().join(name(mode)).join("5")).unwrap();
    }
    close();
    pushed(&["--delete"]);
    // Unchanged entries are not sent again.
    let mut zmove = site.zmove(&["push", "--json"]);
    zmove
        .0
        .arg(site.contents())
        .arg(format!("{}:", daemon.address));
    let again = zmove.outcome().done().summary();
    assert_eq!(again["files"], 0, "{again}");
}

/// The target directory itself has such a mode.
#[test]
fn a_target_that_its_owner_may_not_enter_is_looked_at_and_repeated() {
    let Some(site) = given_away() else { return };
    let daemon = start(&site, &["--user", "nobody"]);
    for mode in [0o000, 0o100, 0o200, 0o300, 0o400, 0o500] {
        let target = format!("closed{mode:o}");
        for bytes in [1, 20, 300] {
            paint(site.source().join("d/f"), bytes);
            std::fs::set_permissions(site.source(), PermissionsExt::from_mode(mode)).unwrap();
            push(&site, &daemon, &["--dry-run"], &target).done();
            push(&site, &daemon, &["--delete"], &target).done();
            assert_same(&site.source(), &site.target().join(&target));
        }
    }
    // Entries above it stay unchanged, and removals there cannot be determined.
    let above = site.target().join("above");
    paint(above.join("closed/old"), 1);
    for path in [
        above.join("closed/old"),
        above.join("closed"),
        above.clone(),
    ] {
        lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    std::fs::set_permissions(above.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::set_permissions(&above, PermissionsExt::from_mode(0o500)).unwrap();
    let listed = push(&site, &daemon, &["--dry-run", "--delete"], "above/closed").expect(23);
    listed.says(&["list directory '.'", "Permission denied"]);
    push(&site, &daemon, &["--delete"], "above/closed").done();
    assert_same(&site.source(), &above.join("closed"));
    assert_eq!(above.metadata().unwrap().mode() & 0o7777, 0o500);
}

/// A directory of another user must not be opened, and a link to such a directory must not be followed.
#[test]
fn closed_directories_of_others_and_behind_links_stay_closed() {
    let Some(site) = given_away() else { return };
    let daemon = start(&site, &["--user", "nobody"]);
    std::fs::create_dir(site.path("elsewhere")).unwrap();
    std::fs::create_dir(site.target().join("others")).unwrap();
    std::os::unix::fs::symlink(site.path("elsewhere"), site.target().join("link")).unwrap();
    lchown(site.path("elsewhere"), Some(NOBODY), Some(NOBODY)).unwrap();
    for path in [site.path("elsewhere"), site.target().join("others")] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o000)).unwrap();
    }
    paint(site.source().join("others/f"), 10);
    push(&site, &daemon, &[], "")
        .expect(23)
        .says(&["open directory 'others'", "Permission denied"]);
    let options = ["--ignore-existing"];
    paint(site.source().join("link/f"), 10);
    push(&site, &daemon, &options, "").expect(23);
    for path in [site.path("elsewhere"), site.target().join("others")] {
        assert_eq!(
            path.metadata().unwrap().mode() & 0o7777,
            0,
            "{}",
            path.display()
        );
        assert!(names(&path).is_empty());
    }
}
