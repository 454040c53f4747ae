//! Checks a history of messages against the rules of the classes. It knows nothing of the
//! implementation: it sees the messages that were submitted and the deliveries in their order.

use crate::protocol::model::Class;
use std::collections::HashMap;

/// A message as it was submitted. Its index in the history is the order of submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    pub class: Class,
    pub contents: Vec<u8>,
}

/// Messages from one endpoint to another.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub submitted: Vec<Submitted>,
    /// Index and contents of each delivered message, in the order of delivery.
    pub delivered: Vec<(usize, Vec<u8>)>,
    /// Indices of the messages that the sender was told are placed, each with the number of
    /// deliveries at that time.
    pub placed: Vec<(usize, usize)>,
}

impl History {
    /// Returns the first violation. `is_complete` states that everything must have arrived.
    pub fn check(&self, is_complete: bool) -> Result<(), String> {
        let mut place: HashMap<usize, usize> = HashMap::new();
        for (at, (index, contents)) in self.delivered.iter().enumerate() {
            let Some(submitted) = self.submitted.get(*index) else {
                return Err(format!("{index} was never submitted"));
            };
            if submitted.contents != *contents {
                return Err(format!("{index} has other contents"));
            }
            if place.insert(*index, at).is_some() {
                return Err(format!("{index} was delivered twice"));
            }
        }
        if is_complete && place.len() != self.submitted.len() {
            let missing = (0..self.submitted.len()).find(|index| !place.contains_key(index));
            return Err(format!("{missing:?} was not delivered"));
        }
        // An ordered message comes after every message that was submitted before it.
        let mut latest = None;
        for (index, submitted) in self.submitted.iter().enumerate() {
            let at = place.get(&index).copied();
            let is_early = at.is_some_and(|at| latest.is_some_and(|latest| latest > at));
            if submitted.class.is_ordered() && is_early {
                return Err(format!("ordered {index} came before an earlier message"));
            }
            latest = latest.max(Some(at.unwrap_or(usize::MAX)));
        }
        for (index, deliveries) in &self.placed {
            if self.submitted[*index].class != Class::Synchronous {
                return Err(format!("{index} is not synchronous"));
            }
            if place.get(index).is_none_or(|at| at >= deliveries) {
                return Err(format!("{index} was reported before it was placed"));
            }
        }
        let synchronous = self
            .submitted
            .iter()
            .filter(|one| one.class == Class::Synchronous);
        if is_complete && self.placed.len() != synchronous.count() {
            return Err("a synchronous message was not reported exactly once".into());
        }
        Ok(())
    }
}

#[test]
fn history__each_kind_of_violation__is_found() {
    let message = |class| Submitted {
        class,
        contents: vec![class as u8],
    };
    let all = [
        Class::Unordered,
        Class::Ordered,
        Class::Unordered,
        Class::Synchronous,
    ];
    let good = History {
        submitted: all.map(message).to_vec(),
        delivered: [0, 1, 2, 3]
            .map(|index| (index, vec![all[index] as u8]))
            .to_vec(),
        placed: vec![(3, 4)],
    };
    assert_eq!(good.check(true), Ok(()));
    let mut overtaken = good.clone();
    overtaken.delivered.swap(1, 2);
    assert_eq!(
        overtaken.check(true),
        Ok(()),
        "an unordered message may overtake"
    );
    type Damage = fn(&mut History);
    let damages: [(Damage, &str); 7] = [
        (|bad| bad.delivered.swap(0, 1), "came before an earlier"),
        (|bad| bad.delivered.swap(2, 3), "came before an earlier"),
        (|bad| bad.delivered.push((2, vec![1])), "twice"),
        (|bad| drop(bad.delivered.remove(2)), "not delivered"),
        (|bad| bad.delivered[1].1.push(9), "other contents"),
        (|bad| bad.placed[0].1 = 3, "before it was placed"),
        (|bad| bad.placed.push((3, 4)), "exactly once"),
    ];
    for (damage, reason) in damages {
        let mut bad = good.clone();
        damage(&mut bad);
        let found = bad.check(true).unwrap_err();
        assert!(found.contains(reason), "{found}: expected {reason}");
    }
    let mut lost = good;
    lost.delivered.pop();
    lost.placed.clear();
    assert!(lost.check(true).unwrap_err().contains("not delivered"));
    assert_eq!(lost.check(false), Ok(()));
}
