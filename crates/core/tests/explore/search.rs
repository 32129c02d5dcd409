//! Searches a scope: all interleavings, breadth first, so that the first violation found is a shortest one; or one long
//! random path.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use foldhash::quality::FixedState;

use crate::scope::{Event, Scope};
use crate::world::{Violation, World};

/// The limit of worlds: more would not fit into the memory that a test may take.
const WORLDS_MAX: usize = 60_000_000;

/// The result of a search.
#[derive(Debug)]
pub struct Found {
    pub worlds: usize,
    pub depth: usize,
    /// The violation, and a shortest path to it.
    pub violation: Option<(Violation, Vec<String>)>,
}

/// A hasher for fingerprints, which are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are kept")
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

/// Explores all of `scope`, or until the first violation.
pub fn explore(scope: &Scope) -> Found {
    let first = World::new(scope);
    let mut seen: HashSet<u64, BuildHasherDefault<AsIs>> = HashSet::default();
    seen.insert(first.fingerprint());
    // For each world, by number: the world that it came from, and which of that world's events led to it.
    let mut parents: Vec<(u32, u16)> = vec![(0, 0)];
    let mut frontier = vec![(0u32, first)];
    let mut events = Vec::new();
    let mut depth = 0;
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (number, world) in frontier {
            world.events(scope, &mut events);
            if !events.iter().any(|(_, must)| *must)
                && let Err(violation) = world.check_quiet(scope)
            {
                return found(scope, &parents, depth, (violation, number, None));
            }
            for (choice, (event, _)) in events.iter().enumerate() {
                let mut after = world.clone();
                if let Err(violation) = after.run(scope, *event) {
                    return found(scope, &parents, depth, (violation, number, Some(choice as u16)));
                }
                if seen.insert(after.fingerprint()) {
                    let child = u32::try_from(parents.len()).expect("a scope has fewer than 2^32 worlds");
                    parents.push((number, choice as u16));
                    next.push((child, after));
                }
            }
        }
        frontier = next;
        depth += 1;
        assert!(parents.len() < WORLDS_MAX, "{}: the scope is too large to be explored", scope.name);
        if std::env::var_os("EXPLORE_PROGRESS").is_some() {
            eprintln!("{}: depth {depth}, {} worlds, {} new", scope.name, parents.len(), frontier.len());
        }
    }
    Found { worlds: parents.len(), depth, violation: None }
}

fn found(scope: &Scope, parents: &[(u32, u16)], depth: usize, bad: (Violation, u32, Option<u16>)) -> Found {
    let (violation, mut at, last) = bad;
    let mut choices: Vec<u16> = last.into_iter().collect();
    while at != 0 {
        let (parent, choice) = parents[at as usize];
        choices.push(choice);
        at = parent;
    }
    let mut world = World::new(scope);
    let mut events = Vec::new();
    let mut path = Vec::new();
    for choice in choices.into_iter().rev() {
        world.events(scope, &mut events);
        let event = events[usize::from(choice)].0;
        path.push(world.describe(event));
        if world.run(scope, event).is_err() {
            break;
        }
    }
    Found { worlds: parents.len(), depth, violation: Some((violation, path)) }
}

/// Takes one random path, until nothing must happen any more.
pub fn wander(scope: &Scope, seed: u64, steps_max: usize) -> Result<usize, (Violation, Vec<String>)> {
    let mut world = World::new(scope);
    let random = FixedState::with_seed(3);
    let mut events: Vec<(Event, bool)> = Vec::new();
    let mut path = Vec::new();
    for step in 0..steps_max {
        world.events(scope, &mut events);
        let must = events.iter().any(|(_, must)| *must);
        if !must {
            return world.check_quiet(scope).map(|()| step).map_err(|violation| (violation, path));
        }
        let event = events[(random.hash_one((seed, step)) % events.len() as u64) as usize].0;
        path.push(world.describe(event));
        if let Err(violation) = world.run(scope, event) {
            return Err((violation, path));
        }
    }
    Err(("T: it does not end".to_owned(), path))
}
