/* Describes the tiles of AMX to programs on virtual machines that announce AMX and hide CPUID
 * leaves 0x1D and 0x1E. For measuring other runtimes at their best; the project's own engine needs
 * it not.
 *
 *   make amx-visible
 *   LD_PRELOAD=$PWD/build/amx_visible.so codtdq bench latency --compare all
 *
 * CPUID is made to fault in this process (Linux, processors with CPUID faulting: Intel since Ivy
 * Bridge). The handler runs the instruction, and answers for the two leaves where the machine says
 * nothing about them. The numbers are the ones that the architecture defines for palette 1: eight
 * tiles of 16 rows and 64 bytes, products of 16 x 64. Nothing else is changed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SET_CPUID = 0x1012, CPUID_FAULTS = 0, CPUID_RUNS = 1 }; /* of arch_prctl */
enum { FEATURES = 7, TILES = 0x1D, PRODUCTS = 0x1E, AMX_TILE = 1 << 24 };
enum { TILE_COUNT = 8, TILE_ROWS = 16, ROW_BYTES = 64, TILE_BYTES = TILE_ROWS * ROW_BYTES };
enum { CPUID_LENGTH = 2 }; /* bytes 0F A2 */

typedef struct {
  uint32_t eax, ebx, ecx, edx;
} Registers;

static struct sigaction previous;

static int let_cpuid(int how) { return (int)syscall(SYS_arch_prctl, SET_CPUID, (long)how); }

static Registers ask(uint32_t leaf, uint32_t subleaf) {
  Registers r = {leaf, 0, subleaf, 0};
  __asm__ volatile("cpuid" : "+a"(r.eax), "=b"(r.ebx), "+c"(r.ecx), "=d"(r.edx));
  return r;
}

/* Beyond its highest leaf a processor may answer with another leaf's content. */
static int is_silent(uint32_t leaf) {
  Registers r = ask(leaf, 0);
  return ask(0, 0).eax < leaf || (r.eax == 0 && r.ebx == 0);
}

/* What a machine that hides nothing would say. CPUID must run. */
static Registers answer(uint32_t leaf, uint32_t subleaf) {
  Registers r = ask(leaf, subleaf);
  if (!(ask(FEATURES, 0).edx & AMX_TILE)) {
    return r;
  }
  if (leaf == 0 && r.eax < PRODUCTS) {
    r.eax = PRODUCTS; /* the highest leaf: programs look no further */
  } else if (leaf == TILES && is_silent(TILES)) {
    Registers palettes = {1, 0, 0, 0};
    Registers palette_1 = {(uint32_t)TILE_BYTES << 16 | TILE_COUNT * TILE_BYTES,
                           TILE_COUNT << 16 | ROW_BYTES, TILE_ROWS, 0};
    Registers none = {0, 0, 0, 0};
    r = subleaf == 0 ? palettes : subleaf == 1 ? palette_1 : none;
  } else if (leaf == PRODUCTS && is_silent(PRODUCTS)) {
    /* widest N in bytes, largest K */
    Registers products = {0, subleaf == 0 ? ROW_BYTES << 8 | TILE_ROWS : 0, 0, 0};
    r = products;
  }
  return r;
}

static void on_fault(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *code = (const uint8_t *)registers[REG_RIP];
  /* CPUID faults without an address; at other faults the code may not even be readable */
  if (info->si_code == SI_KERNEL && info->si_addr == NULL && code[0] == 0x0F && code[1] == 0xA2) {
    int error = errno;
    let_cpuid(CPUID_RUNS);
    Registers r = answer((uint32_t)registers[REG_RAX], (uint32_t)registers[REG_RCX]);
    let_cpuid(CPUID_FAULTS);
    registers[REG_RAX] = r.eax;
    registers[REG_RBX] = r.ebx;
    registers[REG_RCX] = r.ecx;
    registers[REG_RDX] = r.edx;
    registers[REG_RIP] += CPUID_LENGTH;
    errno = error;
    return;
  }
  sigaction(number, &previous, NULL); /* not ours: the instruction faults again, as it would */
}

__attribute__((constructor)) static void start(void) {
  static const char refusal[] =
      "amx_visible: this machine cannot make CPUID fault; nothing is changed\n";
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
  if (let_cpuid(CPUID_FAULTS) != 0) {
    sigaction(SIGSEGV, &previous, NULL);
    (void)!write(STDERR_FILENO, refusal, sizeof refusal - 1);
  }
}
