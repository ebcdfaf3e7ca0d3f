/* interpose.c: the ways to a driver function. A direct link finds our exports; dlsym and dlvsym are ours; so are both
 * forms of cuGetProcAddress. Each asks the real one first, with the caller's own arguments, and swaps only the address.
 *
 * A look-up of any other name is jumped to glibc's function with the caller's return address in place, since dlsym
 * finds out from it who asks (RTLD_NEXT). Nothing here allocates, locks, logs or starts anything.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "hooks.h"

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);

static dlsym_function *_Atomic libc_dlsym;
static dlvsym_function *_Atomic libc_dlvsym;

struct library {
	const ElfW(Sym) * symbols;
	const char *names;
	const uint32_t *gnu_hash;
};

static uintptr_t dynamic_address(uintptr_t base, uintptr_t value)
{
	return value >= base ? value : base + value; /* glibc has relocated it already, others have not */
}

static bool library_read(const struct dl_phdr_info *info, struct library *library)
{
	const ElfW(Dyn) *dynamic = NULL;

	memset(library, 0, sizeof(*library));
	for (unsigned i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
		const void *at = (const void *)dynamic_address(info->dlpi_addr, dynamic->d_un.d_ptr);

		if (dynamic->d_tag == DT_SYMTAB)
			library->symbols = at;
		else if (dynamic->d_tag == DT_STRTAB)
			library->names = at;
		else if (dynamic->d_tag == DT_GNU_HASH)
			library->gnu_hash = at;
	}
	return library->symbols != NULL && library->names != NULL && library->gnu_hash != NULL;
}

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name != '\0'; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

static const ElfW(Sym) * library_find(const struct library *library, const char *name)
{
	const uint32_t buckets = library->gnu_hash[0], first = library->gnu_hash[1], words = library->gnu_hash[2];
	const uint32_t *bucket = library->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = bucket + buckets;
	const uint32_t hash = gnu_hash(name);

	for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
		const ElfW(Sym) *symbol = &library->symbols[i];

		if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
			strcmp(library->names + symbol->st_name, name) == 0)
			return symbol;
		if (chain[i - first] & 1)
			break;
	}
	return NULL;
}

/* Of the libraries in this process, take dlsym and dlvsym from libc.so.6, or libdl.so.2 where they are still there. */
static int find_in_libc(struct dl_phdr_info *info, size_t size, void *unused)
{
	const char *file = info->dlpi_name != NULL ? strrchr(info->dlpi_name, '/') : NULL;
	const ElfW(Sym) * dlsym_symbol, *dlvsym_symbol;
	struct library library;

	(void)size;
	(void)unused;
	file = file != NULL ? file + 1 : info->dlpi_name;
	if (file == NULL || (strncmp(file, "libc.so", 7) != 0 && strncmp(file, "libdl.so", 8) != 0 &&
			strncmp(file, "libc-", 5) != 0 && strncmp(file, "libdl-", 6) != 0))
		return 0;
	if (!library_read(info, &library))
		return 0;
	dlsym_symbol = library_find(&library, "dlsym");
	dlvsym_symbol = library_find(&library, "dlvsym");
	if (dlsym_symbol == NULL || dlvsym_symbol == NULL)
		return 0;
	atomic_store(&libc_dlvsym, (dlvsym_function *)(info->dlpi_addr + dlvsym_symbol->st_value));
	atomic_store(&libc_dlsym, (dlsym_function *)(info->dlpi_addr + dlsym_symbol->st_value));
	return 1;
}

static void *not_found(void)
{
	return NULL;
}

static dlsym_function *find_dlsym(void)
{
	if (atomic_load(&libc_dlsym) == NULL && dl_iterate_phdr(find_in_libc, NULL) == 0)
		return (dlsym_function *)(void *)not_found;
	return atomic_load(&libc_dlsym);
}

void *real_dlsym(void *handle, const char *name)
{
	return find_dlsym()(handle, name);
}

/* Whether a name is the driver's or NVML's: "cu" or "nvml" and a capital letter. Not cublas, not curl. */
static bool is_driver_name(const char *name)
{
	if (name == NULL)
		return false;
	if (name[0] == 'c' && name[1] == 'u')
		return name[2] >= 'A' && name[2] <= 'Z';
	return strncmp(name, "nvml", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z';
}

static void *dlsym_driver_name(void *handle, const char *name)
{
	void *address = find_dlsym()(handle, name);

	return address == NULL ? NULL : hooks_for_symbol(name, address);
}

static void *dlvsym_driver_name(void *handle, const char *name, const char *version)
{
	void *address = find_dlsym() != NULL && atomic_load(&libc_dlvsym) != NULL
				? atomic_load(&libc_dlvsym)(handle, name, version)
				: NULL;

	return address == NULL ? NULL : hooks_for_symbol(name, address);
}

/* Which function a dlsym of `name` goes on in. For RTLD_NEXT, what is next to us is what counts, if it is the driver's. */
__attribute__((used)) static void *dlsym_target(void *handle, const char *name)
{
	if (!is_driver_name(name))
		return (void *)find_dlsym();
	if (handle == RTLD_NEXT && dlsym_driver_name(handle, name) == real_dlsym(handle, name))
		return (void *)find_dlsym();
	return (void *)dlsym_driver_name;
}

__attribute__((used)) static void *dlvsym_target(void *handle, const char *name)
{
	(void)handle;
	if (is_driver_name(name))
		return (void *)dlvsym_driver_name;
	(void)find_dlsym();
	return atomic_load(&libc_dlvsym) != NULL ? (void *)atomic_load(&libc_dlvsym) : (void *)not_found;
}

/* The two exports: keep the three arguments, ask for the target, jump to it with the caller's stack as it was. */
#if defined(__x86_64__)
#define JUMP_TO(export, target)                                                                                        \
	__asm__(".text\n.globl " #export "\n.type " #export ", @function\n.balign 16\n" #export ":\n"                  \
		"\tendbr64\n\tpushq %rdi\n\tpushq %rsi\n\tpushq %rdx\n\tcall " #target "\n"                            \
		"\tpopq %rdx\n\tpopq %rsi\n\tpopq %rdi\n\tjmp *%rax\n.size " #export ", .-" #export "\n")
#elif defined(__aarch64__)
#define JUMP_TO(export, target)                                                                                        \
	__asm__(".text\n.globl " #export "\n.type " #export ", %function\n.balign 16\n" #export ":\n"                  \
		"\thint #34\n\tstp x29, x30, [sp, #-48]!\n\tmov x29, sp\n\tstp x0, x1, [sp, #16]\n"                    \
		"\tstr x2, [sp, #32]\n\tbl " #target "\n\tmov x16, x0\n\tldr x2, [sp, #32]\n"                          \
		"\tldp x0, x1, [sp, #16]\n\tldp x29, x30, [sp], #48\n\tbr x16\n.size " #export ", .-" #export "\n")
#else
#error "dlsym needs a jump for this architecture"
#endif

JUMP_TO(dlsym, dlsym_target);
JUMP_TO(dlvsym, dlvsym_target);

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	CUresult result;

	REAL(cuGetProcAddress);
	result = driver.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
	if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
		*pfn = hooks_for_base(symbol, *pfn);
	return result;
}

CUresult cuGetProcAddress_v2(
	const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus)
{
	CUresult result;

	REAL(cuGetProcAddress_v2);
	result = driver.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
	if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
		*pfn = hooks_for_base(symbol, *pfn);
	return result;
}
