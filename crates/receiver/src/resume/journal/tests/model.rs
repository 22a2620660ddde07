//! Compares a journal of arbitrary events with a simple model of its expected contents.

use super::*;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};

/// An event that a session can journal.
#[derive(Clone, Debug)]
enum Event {
    Part(u64, u8),
    Groups(u64, u32, u8, u8),
    Mark,
    Flushed,
    Ended(u64),
}

type Groups = BTreeMap<u32, (Cv, usize)>;

/// The expected state. Each group has the number of the event that recorded it, or zero if it was flushed.
#[derive(Debug, Default)]
struct Model {
    files: BTreeMap<u64, (PartFile, Groups)>,
    marked: Option<usize>,
}

impl Model {
    fn on(&mut self, number: usize, event: &Event) {
        match *event {
            Event::Part(file, groups) => {
                self.files
                    .insert(file, (part("x", u64::from(groups)), BTreeMap::new()));
            }
            Event::Groups(file, first, from, count) => {
                let Some((part, groups)) = self.files.get_mut(&file) else {
                    return;
                };
                let all = part.source.bytes.div_ceil(zmove_types::GROUP_BYTES);
                for (index, cv) in (first..).zip(cvs(from, count)) {
                    let same = groups.get(&index).is_some_and(|(there, _)| *there == cv);
                    if u64::from(index) < all && !same {
                        groups.insert(index, (cv, number));
                    }
                }
            }
            Event::Mark => self.marked = Some(number),
            Event::Flushed => {
                let Some(marked) = self.marked else { return };
                let groups = self
                    .files
                    .values_mut()
                    .flat_map(|(_, groups)| groups.values_mut());
                groups
                    .filter(|(_, told)| *told < marked)
                    .for_each(|(_, told)| *told = 0);
            }
            Event::Ended(file) => {
                self.files.remove(&file);
            }
        }
    }

    fn unfinished(self) -> Vec<UnfinishedFile> {
        let flat = |groups: Groups| {
            groups
                .into_iter()
                .map(|(index, (cv, told))| (index, (cv, told == 0)))
                .collect()
        };
        let files = self.files.into_iter();
        files
            .map(|(file, (part, groups))| UnfinishedFile {
                file,
                part,
                groups: flat(groups),
                left: None,
            })
            .collect()
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..4_u64, 2..20_u8).prop_map(|(file, groups)| Event::Part(file, groups)),
        (0..4_u64, 0..20_u32, 0..3_u8, 1..9_u8)
            .prop_map(|(file, first, from, count)| Event::Groups(file, first, from, count)),
        any::<()>().prop_map(|()| Event::Mark),
        any::<()>().prop_map(|()| Event::Flushed),
        (0..4_u64).prop_map(Event::Ended),
    ]
}

/// Writes all events to a journal and reads the journal back. Calls `anew` with the journal before each event.
fn told(events: &[Event], anew: impl Fn(&Journal)) -> Vec<UnfinishedFile> {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    let mut mark = None;
    for event in events {
        anew(&journal);
        match *event {
            Event::Part(file, groups) => journal
                .record_part(file, &part("x", u64::from(groups)))
                .unwrap(),
            Event::Groups(file, first, from, count) => {
                journal
                    .record_groups(file, first, &cvs(from, count))
                    .unwrap();
            }
            Event::Mark => mark = Some(journal.mark()),
            Event::Flushed => mark
                .into_iter()
                .for_each(|mark| journal.record_flushed(mark).unwrap()),
            Event::Ended(file) => journal.record_end(file).unwrap(),
        }
    }
    drop(journal);
    the_only(&directory).unfinished().files.clone()
}

proptest! {
    #[test]
    fn what_is_told_comes_back(events in proptest::collection::vec(event(), 0..40)) {
        let mut model = Model::default();
        (1..).zip(&events).for_each(|(number, event)| model.on(number, event));
        assert_eq!(told(&events, |_| ()), model.unfinished());
    }

    #[test]
    fn any_bytes_are_a_journal_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (sample, ends) = sample();
        let _any = read(&bytes);
        let unchanged = read(&sample).unwrap();
        assert_eq!(read(&[&sample[..], &bytes].concat()).unwrap(), unchanged);
        let begun = read(&[&sample[..ends[1]], &bytes].concat()).unwrap();
        assert_eq!(begun, read(&sample[..ends[1]]).unwrap());
    }
}

proptest! {
    // Each case flushes the disk many times.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_journal_that_is_written_anew_says_no_more_than_before(
        events in proptest::collection::vec(event(), 0..40),
    ) {
        let mut model = Model::default();
        (1..).zip(&events).for_each(|(number, event)| model.on(number, event));
        let (found, expected) = (told(&events, Journal::write_anew), model.unfinished());
        let flat = |files: &[UnfinishedFile], flushed: bool| {
            let files = files.iter();
            let groups = files.flat_map(|file| file.groups.iter().map(|(i, group)| (file.file, *i, *group)));
            let groups = groups.filter(|(_, _, (_, told))| !flushed || *told);
            groups.map(|(file, index, (cv, _))| (file, index, cv.0)).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(flat(&found, false), flat(&expected, false));
        assert!(flat(&found, true).is_subset(&flat(&expected, true)));
    }
}
