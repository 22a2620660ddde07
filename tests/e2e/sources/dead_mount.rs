//! Mounts whose file system server has ended, which a message reports.

use crate::support::harness::Site;
use crate::support::namespace::Namespace;
use crate::support::tree::paint;

/// Returns the message part about the mount at the target, after the system's error.
fn mount(site: &Site) -> String {
    format!(
        "Transport endpoint is not connected (os error 107) (the fuse.mergerfs file system mounted at '{}' does not \
         answer; mount it again)",
        site.path("target").display()
    )
}

#[test]
fn a_target_on_a_dead_mount_is_reported() {
    for is_remote in [false, true] {
        let Some(mut site) = Site::within(Namespace::with_dead_mount) else {
            return;
        };
        if is_remote {
            site.start_daemon();
        }
        let file = site.source().join("f");
        paint(&file, 10);
        let mount = mount(&site);
        for path in ["", "d", "d/", "new", "new/x/y"] {
            for options in [&[][..], &["-n"]] {
                for source in [site.contents(), file.clone().into_os_string()] {
                    let outcome = site.push(options, &source, path).expect(3);
                    outcome.says(&["receiver: open ", &mount]).lines(1);
                }
            }
        }
    }
}

#[test]
fn a_source_on_a_dead_mount_is_reported() {
    let Some(mut site) = Site::within(Namespace::with_dead_mount) else {
        return;
    };
    site.let_read("target");
    site.start_daemon();
    let mount = mount(&site);
    let path = |name: &str| site.path(name).into_os_string().into_string().unwrap();
    let new = path("new");
    let run = |words: &[&str]| site.zmove(words).outcome().expect(23).says(&[&mount]);
    for name in ["target", "target/", "target/d", "target/d/f"] {
        run(&["push", &path(name), &new]);
        run(&["verify", &path(name), &new]);
    }
    // The walk finds the mount below the source.
    run(&["push", "-n", &path(""), "/tmp/zmove-none"]);
    site.zmove(&["scan", &path("target")])
        .outcome()
        .expect(23)
        .says(&[&mount]);
    let daemon = site.the_daemon().address;
    run(&["pull", &format!("{daemon}:{}", path("target/d")), &new]);
}

/// A mount in user space that only its owner may access fails in the same way as a dead one.
#[test]
fn a_dead_mount_below_a_source_is_another_file_system() {
    let Some(site) = Site::within(Namespace::with_dead_mount) else {
        return;
    };
    paint(site.source().join("f"), 10);
    let copy = tempfile::tempdir().unwrap();
    for path in ["gone", "target/kept"] {
        paint(copy.path().join(path), 10);
    }
    let source = site.path("").into_os_string().into_string().unwrap();
    let to = copy.path().to_str().unwrap();
    let rules = ["--exclude", "client", "--exclude", "server"];
    let push = [&["push", "-x", "--delete"], &rules[..], &[&source, to]].concat();
    site.zmove(&push).outcome().done();
    assert!(copy.path().join("source/f").exists());
    assert!(!copy.path().join("gone").exists());
    assert!(copy.path().join("target/kept").exists());
}

#[test]
fn a_dead_mount_below_a_target_fails_alone() {
    let Some(site) = Site::within(Namespace::with_dead_mount) else {
        return;
    };
    let path = |name: &str| site.path(name).into_os_string().into_string().unwrap();
    paint(site.source().join("beside"), 10);
    paint(site.source().join("target/f"), 10);
    site.zmove(&["push", &path("source/"), &path("")])
        .outcome()
        .expect(23)
        .says(&[
            "receiver: make directory 'target': Transport endpoint is not connected (os error 107) (the file system \
             mounted there does not answer",
        ])
        .lines(1);
    assert!(site.path("beside").exists());
}
