//! Posted interrupts in Debian's Bochs 3.0.
//!
//! At VM entry the CPU checks the address of the posted-interrupt descriptor: bits 5:0 are 0, and
//! no bit is beyond the physical addresses (Intel SDM volume 3, "Checks on VMX Controls"). Bochs
//! 3.0 wants bits 11:0 to be 0 and refuses the entry otherwise. KVM aligns descriptors to 64 bytes,
//! so its virtual machines do not start with `enable_apicv=1`. Upstream mended the check after 3.0
//! (<https://github.com/bochs-emu/Bochs/issues/556>, June 2025). Here the mask of that one check is
//! rewritten in a copy of Debian's program, and only if the program is the very one that was looked
//! at.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::parts::{Missing, cannot, finish};

/// Of `bochs-bin` in Debian's package bochs 3.0+dfsg-1, amd64.
const SHA256: &str = "07fc8c4bee6efb24d690302db0f07159ad5a153c88bca64bb9345a4263ceb5aa";
/// Where the check loads its mask, in the file.
const OFFSET: usize = 2_034_114;
/// `movabs rdx, 0xffffff0000000fff`; `test rax, rdx` and `jne` to the refusal follow.
const WHOLE_PAGES: [u8; 10] = [0x48, 0xba, 0xff, 0x0f, 0, 0, 0, 0xff, 0xff, 0xff];
/// `movabs rdx, 0xffffff000000003f`.
const CACHE_LINES: [u8; 10] = [0x48, 0xba, 0x3f, 0, 0, 0, 0, 0xff, 0xff, 0xff];

/// For the terminal, since the program that runs is not Debian's to the byte.
pub const WHAT_WAS_DONE: &str = "a copy of Debian's Bochs 3.0 takes posted-interrupt descriptors at multiples of 64 bytes, \
                                 as the manual has it, instead of whole pages (two bytes of one check's mask rewritten)";

/// Makes `to`, the program `from` with the manual's check.
///
/// # Errors
/// [`Missing`] if `from` is another program than the known one; then nothing is written.
pub fn mend(from: &Path, to: &Path) -> Result<(), Missing> {
    let mended = mended(fs::read(from).map_err(|error| cannot("read", from, &error))?)?;
    is_known(&sha256(from)?)?;
    fs::write(to, mended).map_err(|error| cannot("write", to, &error))
}

fn mended(mut program: Vec<u8>) -> Result<Vec<u8>, Missing> {
    let check = program.get_mut(OFFSET..OFFSET + WHOLE_PAGES.len());
    let Some(check) = check.filter(|check| **check == WHOLE_PAGES) else {
        return Err(unknown(&format!("at offset {OFFSET} it has other bytes")));
    };
    check.copy_from_slice(&CACHE_LINES);
    Ok(program)
}

fn is_known(sha256: &str) -> Result<(), Missing> {
    match sha256 == SHA256 {
        true => Ok(()),
        false => Err(unknown(&format!("its SHA-256 is {sha256}"))),
    }
}

fn unknown(why: &str) -> Missing {
    Missing(format!(
        "Debian's bochs-bin is not the one of bochs 3.0+dfsg-1, whose check of posted-interrupt descriptors is known: {why}. \
         It is left as it is; Bochs after 3.0 has the manual's check"
    ))
}

fn sha256(path: &Path) -> Result<String, Missing> {
    let output = finish(Command::new("sha256sum").arg("--binary").arg(path))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split([' ', '*']).next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with the check where Debian's has it.
    fn program() -> Vec<u8> {
        let mut program = vec![0x90; OFFSET + 100];
        program[OFFSET..OFFSET + WHOLE_PAGES.len()].copy_from_slice(&WHOLE_PAGES);
        program
    }

    #[test]
    fn only_the_mask_is_rewritten() {
        let mended = mended(program()).unwrap();
        let changed: Vec<_> = (program().into_iter().zip(mended).enumerate())
            .filter(|(_, (before, after))| before != after)
            .collect();
        assert_eq!(
            changed,
            [(OFFSET + 2, (0xff, 0x3f)), (OFFSET + 3, (0x0f, 0))]
        );
    }

    #[test]
    fn another_program_is_refused_in_words_and_nothing_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (
            directory.path().join("bochs-bin"),
            directory.path().join("mended"),
        );
        let mut elsewhere = program();
        elsewhere.remove(0);
        for (program, why) in [
            (program(), "its SHA-256 is "),
            (elsewhere, "other bytes"),
            (Vec::new(), "other bytes"),
        ] {
            fs::write(&from, program).unwrap();
            let Missing(reason) = mend(&from, &to).unwrap_err();
            assert!(reason.contains(why), "{reason}");
            assert!(!to.exists());
        }
    }

    #[test]
    fn a_sum_is_read_from_its_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        fs::write(&path, "").unwrap();
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(&path).unwrap(), of_nothing);
    }
}
