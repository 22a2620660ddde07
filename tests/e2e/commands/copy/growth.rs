//! Daemons ignore or refuse an opening with a field that a later release has added.

use zmove_wire::{
    CopyOrder, Extension, Extensions, Fetch, GrantOrder, Intent, Open, Refusal, RefusalCode, Role,
    SourcePath, ToReceiver, ToSender, ToSource, decode_message,
};

use super::World;
use super::rights::{copy_order, grant_order, key_of, say, say_as};
use crate::support::tree::{names, paint};

fn extended(critical: bool, target: &[u8]) -> Open {
    Open {
        extensions: Extensions(vec![Extension {
            number: 9,
            critical,
            value: b"z".to_vec(),
        }]),
        ..Open::new(target.to_vec(), [7; 16])
    }
}

/// Returns the first answers to a pull, to the order for a copy, and to the order for its grant. `open` creates the
/// opening of each.
fn answers(world: &World, open: impl Fn(&[u8]) -> Open) -> [ToSender; 3] {
    let client = world.site.path("client");
    let ask = |daemon, order| say(&client, daemon, &[order]);
    let fetch = Fetch::new(open(b""), vec![SourcePath(b"f".to_vec())]);
    let copy = CopyOrder {
        fetch: Fetch {
            open: open(b"in"),
            ..fetch.clone()
        },
        ..copy_order(world)
    };
    let grant = GrantOrder {
        open: open(b"in"),
        ..grant_order(key_of(&world.site.path("third")), "in")
    };
    [
        ask(&world.sender, ToSource::Fetch(Box::new(fetch))),
        ask(&world.sender, ToSource::Copy(Box::new(copy))),
        ask(&world.receiver, ToSource::Grant(Box::new(grant))),
    ]
    .map(|said| decode_message(&said[0]).unwrap())
}

#[test]
fn an_unknown_critical_extension_is_refused_in_a_push_a_pull_and_a_copy() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    let open = |target: &[u8]| extended(true, target);
    let pushed = say_as(
        Role::Control,
        &world.site.path("client"),
        &world.receiver,
        &[ToReceiver::Open(open(b"in"))],
    );
    let pushed = decode_message(&pushed[0]).unwrap();
    for answer in answers(&world, open).into_iter().chain([pushed]) {
        let ToSender::Refused(Refusal { code, text }) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(code, RefusalCode::Protocol, "{text}");
        assert!(text.contains("extension 9 of the opening"), "{text}");
    }
    assert!(names(&world.site.target()).is_empty());
}

#[test]
fn no_pull_copy_or_grant_is_for_a_probe_or_a_cleaning() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    for intent in [Intent::Measure, Intent::Clean, Intent::CleanPreview] {
        let open = |target: &[u8]| Open {
            intent,
            ..Open::new(target.to_vec(), [7; 16])
        };
        for answer in answers(&world, open) {
            let ToSender::Refused(Refusal { code, text }) = answer else {
                panic!("{intent:?}: {answer:?}")
            };
            assert_eq!(code, RefusalCode::Protocol, "{text}");
            let said = ["a probe or a cleaning", "a grant for that"];
            assert!(said.iter().any(|said| text.contains(said)), "{text}");
        }
    }
}

#[test]
fn an_unknown_optional_extension_is_ignored() {
    let world = World::new();
    let client = world.site.path("client");
    let grant = GrantOrder {
        open: extended(false, b"in"),
        ..grant_order(key_of(&world.site.path("third")), "in")
    };
    let granted = say(
        &client,
        &world.receiver,
        &[ToSource::Grant(Box::new(grant))],
    );
    assert!(matches!(
        decode_message(&granted[0]),
        Ok(ToSender::Granted(_))
    ));
    let push = [
        ToReceiver::Open(extended(false, b"in")),
        ToReceiver::Announce {
            items: 0,
            mismatches: 0,
        },
    ];
    let pushed = say_as(Role::Control, &client, &world.receiver, &push);
    let last = decode_message(pushed.last().unwrap());
    assert!(matches!(last, Ok(ToSender::Finished(_))), "{last:?}");
}
