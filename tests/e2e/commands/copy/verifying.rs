//! Verifications between two daemons, ordered by a client on a third host.

use zmove_types::GROUP_BYTES;

use super::World;
use crate::support::tree::paint;

#[test]
fn two_daemons_compare_what_they_have() {
    let world = World::new();
    let site = &world.site;
    crate::commands::pull::grow_kinds(&site.source());
    world.copied(&[], &[""]);
    let verify = |options: &[&str]| {
        let mut zmove = site.zmove(&["verify"]);
        zmove
            .0
            .args(options)
            .arg(format!("{}:", world.sender.address));
        zmove.0.arg(format!("{}:", world.receiver.address));
        zmove.outcome()
    };
    let outcome = verify(&[]).expect(0);
    assert!(
        outcome.stdout.contains("all the same: "),
        "{}",
        outcome.stdout
    );
    let id = super::id_in(&outcome.stderr);
    assert!(
        world
            .result(&[], &id, &world.sender)
            .expect(0)
            .stdout
            .contains("nothing was sent to")
    );
    paint(site.source().join("large"), 3 * GROUP_BYTES);
    world.copied(&[], &[""]);
    super::super::verify::spoil(&site.target().join("large"), GROUP_BYTES);
    std::fs::write(site.target().join("more"), "").unwrap();
    let outcome = verify(&[]).expect(6);
    let large = format!(
        "~ large (contents of bytes {GROUP_BYTES}-{})\n",
        2 * GROUP_BYTES - 1
    );
    assert!(
        outcome.stdout.contains(&large) && outcome.stdout.contains("- more\n"),
        "{}",
        outcome.stdout
    );
    world
        .result(&[], &super::id_in(&outcome.stderr), &world.sender)
        .expect(6);
    let summary = verify(&["--json", "--one-way"]).expect(6).summary();
    // The removed file, and the changed time of its directory.
    assert_eq!(
        (&summary["verify"], &summary["changed"]),
        (&false.into(), &2.into())
    );
}
