//! What is said to a sender of an older version.

use zmove_transport::memory_control;
use zmove_types::Doing;
use zmove_wire::{Compare, Extraneous, Overwrite, TargetShape};

use super::*;

/// What comes after leave, in a transfer that moves nothing and whose lanes were held to a rate.
async fn last_words(version: Version) -> Vec<ToSender> {
    let home = tempfile::tempdir().unwrap();
    let ((mut reader, mut writer), control) = memory_control();
    let (_lanes_in, lanes) = mpsc::channel(1);
    let config = ReceiverConfig::default();
    config.meter.receive.add(Doing::Paced, Duration::from_millis(3));
    let (access, turns) = (Access::Beneath(vec![home.path().to_owned()]), Turns::default());
    let (transfer, owner) = (TransferId([1; 16]), String::new());
    let session = Session { transfer, version, control, lanes, owner, access, turns, config };
    let session = tokio::spawn(run_session(session, std::future::pending()));
    let open = Open {
        target: Vec::new(),
        shape: TargetShape::Directory { tops: vec![] },
        compare: Compare::Quick,
        durability: Durability::None,
        delta: false,
        run: [1; 16],
        overwrite: Overwrite::Differing,
        purpose: Purpose::Move,
        extraneous: Extraneous::Stays,
        inplace: false,
    };
    for message in [ToReceiver::Open(open), ToReceiver::Announce { items: 0, mismatches: 0 }] {
        writer.send(&encode_message(&message)).await.unwrap();
    }
    reader.greeting().await.unwrap();
    let mut said = Vec::new();
    while let Some(message) = reader.receive().await.unwrap() {
        said.push(decode_message(&message).unwrap());
    }
    drop((reader, writer));
    session.await.unwrap().unwrap();
    assert!(matches!(said.remove(0), ToSender::Opened(_)));
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_sender_is_not_told_of_rates() {
    let said = last_words(Version::V2).await;
    assert!(matches!(said[..], [ToSender::Finished(_)]), "{said:?}");
    let said = last_words(Version::V3).await;
    assert!(matches!(said[..], [ToSender::Paced { receive_us: 3000 }, ToSender::Finished(_)]), "{said:?}");
}
