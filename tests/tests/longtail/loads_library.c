/* A shared library for `loads`. */
static int value = 41;

int answer(void)
{
	return ++value;
}
