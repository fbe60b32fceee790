//! From a snapshot of a stack to the names of its functions: by the unwind tables of the program
//! and its libraries, which need no frame pointers, and by their debug information, as far as there
//! is any.
//!
//! The kernel does not tell the RBP of a blocked thread. Code that was compiled with frame
//! pointers, as the standard library is, finds its frame by that. So each place on the stack that
//! could be such a frame is tried, and the one that leads through most frames is taken: a wrong one
//! leads nowhere after a step or two.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Write;
use std::fs;
use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use object::{Object, ObjectSection, ObjectSegment};
use shinjuku_preempt::{ContextId, StackSnapshot, StackSnapshots, WorkerLink};

use super::Place;

/// The longest backtrace, in frames.
const FRAMES: usize = 48;
/// How many frames tell places apart: the innermost that have a name.
const KEY: usize = 8;
/// How far up the stack a frame pointer is searched, in bytes.
const SEARCHED: u64 = 4096;
/// The runtime's own function between a context and a handler. A backtrace ends there.
const ENTRY: &str = "shinjuku::threads::entry";

/// Takes backtraces.
pub(super) struct Backtraces {
    /// `None`: no signal is free.
    snapshots: Option<StackSnapshots>,
    /// Read when the first backtrace is taken.
    code: Option<Code>,
}

/// The program and its libraries.
struct Code {
    unwinder: UnwinderX86_64<Vec<u8>>,
    ranges: Vec<Range<u64>>,
}

impl Backtraces {
    pub(super) fn new() -> Self {
        let snapshots = StackSnapshots::install();
        if let Err(error) = &snapshots {
            tracing::warn!(target: "shinjuku", "stalls are reported without backtraces: {error}");
        }
        Self {
            snapshots: snapshots.ok(),
            code: None,
        }
    }

    /// Where the code in `context`, at `worker`, is.
    pub(super) fn take(&mut self, worker: &WorkerLink, context: ContextId) -> Option<Place> {
        let snapshot = self.snapshots?.take(worker, context)?;
        let code = self.code.get_or_insert_with(Code::loaded);
        let mut place = Place {
            key: Vec::new(),
            text: String::new(),
        };
        if let Some(number) = snapshot.system_call.filter(|&number| number >= 0) {
            let _ = write!(place.text, ", in system call {number}");
        }
        place.text += ", at";
        for (number, address) in code.addresses(&snapshot).into_iter().enumerate() {
            if !frame(&mut place, number, address) {
                break;
            }
        }
        Some(place)
    }
}

impl Code {
    /// All code that is loaded now. A backtrace ends at code that is loaded later, since its unwind
    /// tables are not here.
    fn loaded() -> Self {
        let mut code = Self {
            unwinder: UnwinderX86_64::new(),
            ranges: Vec::new(),
        };
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        for (path, range) in files(&maps) {
            if let Some(module) = module(path, range.clone()) {
                code.unwinder.add_module(module);
                code.ranges.push(range);
            }
        }
        code
    }

    /// Where each frame is, the innermost first.
    fn addresses(&self, snapshot: &StackSnapshot) -> Vec<u64> {
        let known = self.walk(snapshot, snapshot.frame_pointer);
        if snapshot.frame_pointer != 0 {
            return known;
        }
        let lowest = snapshot.stack_pointer & !7;
        let is_frame = |&place: &u64| {
            let back = snapshot.word(place + 8);
            back.is_some_and(|back| self.ranges.iter().any(|range| range.contains(&back)))
        };
        let places = (lowest..lowest + SEARCHED).step_by(8).filter(is_frame);
        let tried = places.map(|place| self.walk(snapshot, place));
        // Of places that lead equally far, the innermost is taken.
        let longer = |best: Vec<u64>, next: Vec<u64>| match next.len() > best.len() {
            true => next,
            false => best,
        };
        tried.fold(known, longer)
    }

    fn walk(&self, snapshot: &StackSnapshot, frame_pointer: u64) -> Vec<u64> {
        let (instruction, stack_pointer) = (snapshot.instruction, snapshot.stack_pointer);
        let registers = UnwindRegsX86_64::new(instruction, stack_pointer, frame_pointer);
        let mut cache = CacheX86_64::<_>::new();
        let mut read = |address| snapshot.word(address).ok_or(());
        let unwinder = &self.unwinder;
        let mut frames = unwinder.iter_frames(instruction, registers, &mut cache, &mut read);
        let mut addresses = Vec::new();
        while let (Ok(Some(frame)), true) = (frames.next(), addresses.len() < FRAMES) {
            addresses.push(frame.address_for_lookup());
        }
        addresses
    }
}

/// Adds the functions at an address, inlined ones separately. `false`: the frames that are left are
/// the runtime's.
fn frame(place: &mut Place, number: usize, address: u64) -> bool {
    let mut is_entry = false;
    let mut is_named = false;
    ::backtrace::resolve(address as *mut c_void, |symbol| {
        let Some(name) = symbol.name().map(|name| format!("{name:#}")) else {
            return;
        };
        is_named = true;
        is_entry |= name.contains(ENTRY);
        if is_entry {
            return;
        }
        let _ = write!(place.text, "\n  {number:2}: {name}");
        if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
            let _ = write!(place.text, "\n      {}:{line}", file.display());
        }
        if place.key.len() < KEY {
            place.key.push(name);
        }
    });
    if !is_named {
        let _ = write!(place.text, "\n  {number:2}: {address:#x}");
    }
    !is_entry
}

/// The files that have code, and where each is mapped.
fn files(maps: &str) -> BTreeMap<&str, Range<u64>> {
    let mut files: BTreeMap<&str, (Range<u64>, bool)> = BTreeMap::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else {
            continue;
        };
        let ends = range.split_once('-').map(|(start, end)| {
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(number(start)?..number(end)?)
        });
        let (Some(Some(range)), Some(path)) = (ends, words.nth(3)) else {
            continue;
        };
        if !path.starts_with('/') {
            continue;
        }
        let known = files.entry(path).or_insert((range.clone(), false));
        known.0 = known.0.start.min(range.start)..known.0.end.max(range.end);
        known.1 |= rights.contains('x');
    }
    let with_code = files.into_iter().filter(|(_, (_, has_code))| *has_code);
    with_code.map(|(path, (range, _))| (path, range)).collect()
}

/// A program's or a library's unwind tables.
fn module(path: &str, range: Range<u64>) -> Option<Module<Vec<u8>>> {
    let bytes = fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let lowest = file.segments().map(|segment| segment.address()).min()?;
    let section = |name| {
        let section = file.section_by_name(name)?;
        let address = section.address();
        let data = section.data().ok()?.to_vec();
        Some((address..address + section.size(), data))
    };
    let (eh_frame_svma, eh_frame) = section(".eh_frame").unzip();
    let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr").unzip();
    let (text_svma, text) = section(".text").unzip();
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma,
        text,
        got_svma: section(".got").map(|(range, _)| range),
        eh_frame_svma,
        eh_frame,
        eh_frame_hdr_svma,
        eh_frame_hdr,
        ..Default::default()
    };
    let base = range.start.checked_sub(lowest & !0xfff)?;
    Some(Module::new(path.to_owned(), range, base, sections))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_code_are_found_with_all_their_mappings() {
        let maps = "1000-2000 r--p 0 08:01 7 /bin/a\n2000-5000 r-xp 1000 08:01 7 /bin/a\n\
                    6000-7000 r--p 0 08:01 8 /tmp/data\n8000-9000 r-xp 0 00:00 0 [vdso]\n\
                    a000-b000 rw-p 0 00:00 0\n";
        let files = files(maps);
        assert_eq!(
            files.into_iter().collect::<Vec<_>>(),
            [("/bin/a", 0x1000..0x5000)]
        );
    }

    #[test]
    fn this_program_has_unwind_tables() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let own = std::env::current_exe().unwrap();
        let files = files(&maps);
        let range = files.get(own.to_str().unwrap()).expect("it has code");
        let here = this_program_has_unwind_tables as fn() as usize as u64;
        assert!(range.contains(&here));
        assert!(module(own.to_str().unwrap(), range.clone()).is_some());
    }
}
